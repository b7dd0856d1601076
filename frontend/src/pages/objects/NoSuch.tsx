import { Link } from "react-router";

/** In place of an object that is not there, or not for this user. */
export function NoSuch({ kind, name, list }: { kind: string; name: string; list: { to: string; label: string } }) {
  return (
    <div className="panel mx-auto my-12 max-w-xl p-8 text-sm text-soft">
      <title>{`No such ${kind} · Quartermaster`}</title>
      <h1 className="text-base font-semibold text-ink">
        There is no {kind} {name}
      </h1>
      <p className="mt-2">
        It may have been deleted, or you may not see it. See{" "}
        <Link className="link" to={list.to}>
          {list.label.toLowerCase()}
        </Link>
        .
      </p>
    </div>
  );
}
