/** the catalog's pages, loaded together when one of them is opened. */

export { Adapters } from "./Adapters";
export { AuditPage } from "./Audit";
export { Backends } from "./Backends";
export { Catalog } from "./Catalog";
export { Prices, Slos, Tiers } from "./Contracts";
export { Roles } from "./Members";
export { PeoplePage } from "./People";
export { Pools } from "./Pools";
export { TenantList } from "./TenantList";
export { TenantPage } from "./TenantPage";
export { UsagePage } from "./Usage";
