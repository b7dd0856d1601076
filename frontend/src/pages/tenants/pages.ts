/** The books' pages, loaded together when one of them is opened. */

export { AuditPage } from "./Audit";
export { Backends } from "./Backends";
export { Books } from "./Books";
export { Prices, Slos, Tiers } from "./Contracts";
export { Roles } from "./Members";
export { Pools } from "./Pools";
export { TenantList } from "./TenantList";
export { TenantPage } from "./TenantPage";
export { UsagePage } from "./Usage";
