// Types of the answers from the OpenAPI schema on standard input, for `make generated`.
import openapiTS, { astToString } from "openapi-typescript";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const schema = JSON.parse(Buffer.concat(chunks).toString("utf8"));
process.stdout.write(astToString(await openapiTS(schema, { alphabetize: true })));
