// A real identity provider for the tests of signing in (tests/browser/test_sign_in.py): node oidc-provider.mjs OPTIONS,
// where OPTIONS is JSON with port, client_id, client_secret, redirect_uris and people, a file of the people there are:
// {"ada": {"email": "...", "groups": ["..."]}}. It is read anew at each question, so a test can remove somebody.
import { readFileSync } from "node:fs";
import { Provider } from "oidc-provider";

const options = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${options.port}`;

const provider = new Provider(issuer, {
  clients: [{ client_id: options.client_id, client_secret: options.client_secret, redirect_uris: options.redirect_uris, grant_types: ["authorization_code", "refresh_token"] }],
  claims: { openid: ["sub"], email: ["email"], profile: ["name", "preferred_username"], groups: ["groups"] },
  scopes: ["openid", "email", "profile", "groups", "offline_access"],
  // seconds; access tokens end often, so that the tests see them renewed
  ttl: { AccessToken: options.access_s ?? 3, AuthorizationCode: 60, IdToken: 60, Grant: 3600, Interaction: 600, RefreshToken: 3600, Session: 3600 },
  issueRefreshToken: async (_context, client) => client.grantTypeAllowed("refresh_token"),
  rotateRefreshToken: true,
  features: { devInteractions: { enabled: true } },
  pkce: { required: () => true },
  async findAccount(_context, sub) {
    const found = JSON.parse(readFileSync(options.people, "utf8"))[sub];
    return found && { accountId: sub, claims: async () => ({ sub, name: sub, preferred_username: sub, ...found }) };
  },
});

provider.listen(options.port, "127.0.0.1", () => console.log(`ready at ${issuer}`));
