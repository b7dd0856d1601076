import { useRouteError } from "react-router";
import { Empty } from "./Shell";

/** In the place of a page whose code failed, or could not be loaded: an update of the console takes its old parts away. */
export function Crashed() {
  const error = useRouteError();
  const said = error instanceof Error ? error.message : String(error);
  return (
    <div role="alert">
      <Empty title="This page cannot be shown">
        <title>Page failed · Quartermaster</title>
        <p>
          The console itself failed here, or was updated since it was opened. Requests continue, and nothing was changed. Reload the page; if it fails again, tell your administrator:{" "}
          <code className="break-words">{said}</code>
        </p>
        <p className="mt-3 flex justify-center gap-2">
          <button type="button" className="button button-primary" onClick={() => location.reload()}>
            Reload
          </button>
          <a className="button" href="/">
            To the overview
          </a>
        </p>
      </Empty>
    </div>
  );
}
