// Types of the answers from the OpenAPI schema on standard input, for `make generated`.
import { readFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const schema = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(astToString(await openapiTS(schema, { alphabetize: true })));
