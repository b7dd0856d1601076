// Made by `make generated` from the OpenAPI schema. Not edited by hand.
// schema 40a4de50b2f70b5a, body af048af02c7ecd00
export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description A run that was just asked for. */
        Accepted: {
            /** @description Policies, and what is supposed. */
            asked: components["schemas"]["Asked"];
            at: string;
            author: string;
            done: number;
            finished_at: string | null;
            id: number;
            name: string;
            /** @description Empty, or why the run does not begin at once. */
            notice: string;
            /** @description The pool whose engines, limits and policy are used. */
            pool: string;
            problem: string;
            recording: string;
            state: components["schemas"]["LabRunState"];
            total: number;
        };
        Action: {
            /** @description What the console has a button for. */
            do: string;
            /** @description The replica, tenant or pool. */
            of: string;
            text: string;
        };
        /** @description A row of the catalog. */
        Adapter: {
            /** @description A short description. */
            description: string;
            /** @description The model name that clients send. No pool and no other adapter may have it. */
            model: string;
            /** @description Name of the pool. */
            pool: string;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description Where engines find its weights, such as a path on their disks. Empty: it is never loaded from here. */
            source: string;
            /** @description The name under which engines list it. Empty: the same. */
            upstream_model: string;
        };
        /** @description What was granted while a request waited, in hindsight. */
        Ahead: {
            count: number;
            last?: components["schemas"]["AheadLast"];
            /** @description Of these, how many came later. */
            overtook: number;
            /** @description [ms after it was received, how many still went before it] */
            steps: number[][];
            /** @description Requests by tenant. */
            tenants: {
                [key: string]: number;
            };
        };
        /** @description The last request that was granted before it, with the reason given. */
        AheadLast: {
            entitlement: string;
            granted_at: string;
            input_tokens_est: number;
            output_tokens_est: number;
            policy: string;
            received_at: string;
            request_id: string;
            tenant: string;
            tier: string;
            why: string;
        };
        Alert: {
            acknowledged_at: string | null;
            acknowledged_by: string;
            assigned_at: string | null;
            assigned_by: string;
            /** @description Who looks after it. */
            assigned_to: string;
            at: string;
            delivered_at: string | null;
            id: number;
            kind: string;
            limit_tokens: number | null;
            line: string;
            /** @description Identifies the alert: one name is stored once. */
            name: string;
            /** @description Of the person who acknowledged or silenced it. */
            note: string;
            /** @default  */
            pool: string;
            /** @description Why it was resolved. */
            resolution: string;
            resolved_at: string | null;
            rule: number | null;
            /** @default  */
            rule_name: string;
            severity: components["schemas"]["SeverityEnum"];
            silenced_by: string;
            /** @description Nothing is sent until then. */
            silenced_until: string | null;
            /** @description open, resolved; told: sent once, it has no end. */
            state: string;
            /**
             * @description The entitlement, backend or quota of a rule.
             * @default
             */
            subject: string;
            tenant: string;
            threshold: number | null;
            used_tokens: number | null;
            /** @description The value, in the rule's unit. */
            value: number | null;
        };
        /** @description A request that waits or runs. */
        Alive: {
            /** @description State time [s]. */
            arrival_s: number;
            attempt: number;
            /** @description Operators and admins only. */
            backend?: string;
            class: string;
            entitlement: string;
            /** @description Operators and admins only. */
            gateway?: string;
            granted_s: number | null;
            id: string;
            input_tokens: number;
            output_bound: number;
            /** @description Expected. */
            output_tokens: number;
            pool: string;
            /** @description Tokens produced so far. */
            served: number;
            state: components["schemas"]["InFlightState"];
            tenant: string;
            tier: string;
        };
        AliveRequest: {
            alive: components["schemas"]["Alive"];
            request_id: string;
        };
        Amount: {
            /** @description Exact, as a decimal number. */
            amount: string;
            currency: string;
        };
        /** @description What a run is about. Runs of earlier releases lack the last four. */
        Asked: {
            /** @description Times the recorded one. */
            load?: number;
            /** @description Backends taken as gone. */
            lost?: string[];
            newcomers?: components["schemas"]["Newcomer"][];
            objects?: components["schemas"]["TriedObject"][];
            policies: string[];
            /** @description 0: as many as the pool has. */
            replicas: number;
            slos: {
                [key: string]: {
                    [key: string]: number | null;
                };
            } | null;
            variants: number;
        };
        Assignees: {
            users: string[];
        };
        Audit: {
            action: string;
            /** @description User name, or the part of the system that acted. */
            actor: string;
            /** @description Where the request came from. */
            address: string;
            after: unknown;
            at: string;
            before: unknown;
            /** @description SHA-256 over the digest before it and everything in this entry. */
            digest: string;
            id: number;
            /** @description What sort of object. */
            kind: string;
            /** @description Its place in the chain. Null: written by an older release. */
            number: number | null;
            object: string;
            /**
             * @description Whether it was done, refused, or only read.
             *
             *     * `done` - done
             *     * `refused` - refused
             *     * `read` - read
             */
            outcome: components["schemas"]["AuditOutcomeEnum"];
            request_id: string;
            tenant: string | null;
            /** @description Where it was done: api, admin, cli, kubernetes or system. */
            via: string;
        };
        /**
         * @description * `done` - done
         *     * `refused` - refused
         *     * `read` - read
         * @enum {string}
         */
        AuditOutcomeEnum: "done" | "refused" | "read";
        /**
         * @description * `person` - a person
         *     * `optimiser` - the optimiser
         * @enum {string}
         */
        AuthorKindEnum: "person" | "optimiser";
        /** @description A row of the catalog. */
        Backend: {
            /** @description DCGM exporter, such as http://10.0.0.7:9400/metrics. Empty: the engine's own /metrics is tried. */
            dcgm_url: string;
            /** @description A short description. */
            description: string;
            /** @description Receives no new requests; running requests finish. */
            draining: boolean;
            /** @description Whether a key for the engine is stored. */
            has_api_key: boolean;
            /** @description Tokens its KV cache holds; vLLM logs it at start. */
            kv_tokens: number;
            leaving_since: string | null;
            /** @description A scaling driver may drain and remove it. Others are never removed automatically. */
            managed: boolean;
            /**
             * @description Which part of a request it does (vLLM with a KV connector). A pool with prefill replicas needs decode replicas, and the other way round: alone they serve nothing.
             *
             *     * `both` - both: prompts and answers
             *     * `prefill` - prefill: computes prompts, and hands their KV cache to a decode replica
             *     * `decode` - decode: takes that KV cache and writes the answer
             */
            phase: components["schemas"]["PhaseEnum"];
            /** @description Name of the pool. */
            pool: string;
            silent_since: string | null;
            /** @description Sequences it may run at once (vLLM's --max-num-seqs). */
            slots: number;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description Prompt and answer together, as `manage.py calibrate` measures it. 0: not measured, so no bound. */
            tokens_per_s: number;
            /** @description Scheme, host and port of the engine, such as http://10.0.0.7:8000. */
            url: string;
        };
        Batch: {
            completed: number;
            created_at: string;
            ended_at: string | null;
            endpoint: string;
            entitlement: string;
            /** @description When all lines are done, at the pace since it began. null: nothing is known yet, or it has ended. */
            expected_end: string | null;
            /** @description What is not done by then is not done. */
            expires_at: string;
            failed: number;
            /** @description There are errors to download. */
            has_errors: boolean;
            /** @description There are answers to download. */
            has_output: boolean;
            id: string;
            in_progress_at: string | null;
            input_tokens: number;
            key_id: string;
            model: string;
            output_tokens: number;
            /** @description Why it failed or was cancelled. */
            problems: components["schemas"]["Problem"][];
            /** @description Whose keys alone see it. Empty: those keys of the tenant that are of no project. */
            project: string;
            status: components["schemas"]["BatchStatus"];
            tenant: string;
            total: number;
        };
        /**
         * @description * `validating` - Validating
         *     * `failed` - Failed
         *     * `in_progress` - In Progress
         *     * `finalizing` - Finalizing
         *     * `completed` - Completed
         *     * `expired` - Expired
         *     * `cancelling` - Cancelling
         *     * `cancelled` - Cancelled
         * @enum {string}
         */
        BatchStatus: "validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled";
        /** @enum {unknown} */
        BlankEnum: "";
        /** @description A row of the catalog. */
        Budget: {
            /** @description Shares of the hard limit, else of the soft one, that raise an alert [%], such as [50, 80]. At most 8. */
            alert_at: string[];
            /** @description Three letters, such as EUR. What is priced in another currency does not count. */
            currency: string;
            /** @description Amount a month. From here on requests are refused until the month ends. Empty: none. */
            hard_amount: string | null;
            id: number;
            /** @description Of the project, of the user as requests or keys name it, or the id of the key. Empty: the tenant. */
            name: string;
            /**
             * @description Whose requests it pays for.
             *
             *     * `tenant` - the tenant
             *     * `project` - one project
             *     * `user` - one user
             *     * `key` - one key
             */
            scope: components["schemas"]["BudgetScope"];
            /** @description Amount a month. Passing it raises an alert. Empty: none. */
            soft_amount: string | null;
            /** @description Name of the tenant. */
            tenant: string;
        };
        /**
         * @description * `tenant` - the tenant
         *     * `project` - one project
         *     * `user` - one user
         *     * `key` - one key
         * @enum {string}
         */
        BudgetScope: "tenant" | "project" | "user" | "key";
        BudgetSpent: {
            /** @description False where the budget is a user's and the ledger no longer has all of the month. */
            complete: boolean;
            currency: string;
            /** @description At the month's end, at its mean pace so far. Null in the first day: no pace is known. */
            forecast: string | null;
            hard_amount: string | null;
            id: number;
            name: string;
            scope: string;
            soft_amount: string | null;
            /** @description In this month (UTC), exact. */
            spent: string;
            tenant: string;
            /** @description Requests whose answers nobody knows: what these cost is not in it. Null: not known how many. */
            tokens_unknown: number | null;
        };
        Calibration: {
            at: string;
            /** @description Mean relative error of the time per token. */
            error: number;
            /** @description Of gateway and network, on every first token. */
            overhead_s: number;
            requests: number;
            /** @description Coefficients [s]: t0, a, b, c, e, knee, a2. */
            step_time: unknown;
            token_budget: number;
            /** @description Simulated against live, on the window before this fit. */
            trust: {
                [key: string]: unknown;
            };
        };
        Cancelled: {
            request_id: string;
            was: components["schemas"]["InFlightState"];
        };
        Channel: {
            /** @description Off: nothing is sent to it. */
            enabled: boolean;
            /** @description Also receives alerts of rules that name no channel, and those that have no rule. */
            for_all: boolean;
            id: number;
            /**
             * @description What receives the alerts.
             *
             *     * `webhook` - webhook: a signed call to your own program
             *     * `slack` - Slack, or another receiver of Slack's incoming webhooks
             *     * `email` - e-mail
             *     * `pagerduty` - PagerDuty, Events API v2
             */
            kind: components["schemas"]["ChannelKindEnum"];
            /** @description Rules name it by this. */
            name: string;
            /** @description Why the last attempt failed; empty: it did not. */
            problem: string;
            sent_at: string | null;
            /** @description The target, without what would let others send there. */
            shown_target: string;
            tried_at: string | null;
            /** @description Alerts whose last attempt failed. */
            undelivered: number;
        };
        /**
         * @description * `webhook` - webhook: a signed call to your own program
         *     * `slack` - Slack, or another receiver of Slack's incoming webhooks
         *     * `email` - e-mail
         *     * `pagerduty` - PagerDuty, Events API v2
         * @enum {string}
         */
        ChannelKindEnum: "webhook" | "slack" | "email" | "pagerduty";
        ChannelTried: {
            /** @description Why not; empty if it was sent. */
            problem: string;
            sent: boolean;
        };
        Colors: {
            /** @description By tenant: a place in the palette. */
            colors: {
                [key: string]: number;
            };
        };
        /** @enum {string} */
        CredentialStatus: "active" | "expired" | "revoked";
        Decision: {
            /** @description Whether the driver was called. */
            applied: boolean;
            at: string;
            detail: string;
            /** @description Slots, KV tokens or tokens/s: what is tightest. */
            dimension: string;
            entitled: number;
            finished_at: string | null;
            from_replicas: number;
            id: number;
            outcome: components["schemas"]["DecisionOutcomeEnum"];
            per_replica: number;
            reason: string;
            /** @description Refused for lack of capacity, as capacity. */
            refused: number;
            slo_met: number;
            slo_total: number;
            to_replicas: number;
            used: number;
            waiting: number;
        };
        /**
         * @description * `advised` - advised: not carried out
         *     * `running` - running: the driver carries it out
         *     * `done` - done
         *     * `failed` - failed
         *     * `superseded` - superseded: replaced by a later decision
         * @enum {string}
         */
        DecisionOutcomeEnum: "advised" | "running" | "done" | "failed" | "superseded";
        Delivery: {
            channel: string;
            delivered_at: string | null;
            /** @description Why the last attempt failed; empty: it did not. */
            problem: string;
            resolution_delivered_at: string | null;
        };
        /** @description A mean over variants and its 95 % interval; of one variant ``low`` and ``high`` are the mean, and say nothing. */
        Difference: {
            high: number;
            low: number;
            mean: number;
            /** @description The interval leaves out 0; never of one variant, which has no interval. */
            sure: boolean;
        };
        Effect: {
            from: string;
            /** @description That are not listed. */
            more_tenants: number;
            /** @description The most hurt first. */
            tenants: components["schemas"]["Hurt"][];
            to: string;
            total: components["schemas"]["HurtInAll"];
            /** @description False: it lasted longer than is summed up. */
            whole: boolean;
        };
        /** @description What a change would do, had it not been tried only (`dry_run=true`). */
        Effects: {
            changes: {
                action: string;
                after: {
                    [key: string]: unknown;
                } | null;
                before: {
                    [key: string]: unknown;
                } | null;
                kind: string;
                object: string;
            }[];
            pools: {
                after: {
                    [key: string]: unknown;
                } | null;
                before: {
                    [key: string]: unknown;
                } | null;
                entitlements: {
                    [key: string]: unknown;
                }[];
                pool: string;
            }[];
        };
        /**
         * @description * `vllm` - vllm: vLLM
         *     * `openai` - openai: any server with the OpenAI API, without metrics
         *     * `sglang` - sglang: SGLang, started with --enable-metrics
         *     * `vllm_plugin` - vllm_plugin: vLLM with Quartermaster's scheduler inside
         * @enum {string}
         */
        EngineEnum: "vllm" | "openai" | "sglang" | "vllm_plugin";
        /** @description What was found there. */
        EngineFound: {
            /** @description What its KV cache holds, where it says so. */
            kv_tokens: number | null;
            models: components["schemas"]["EngineModel"][];
            /** @description It answered with the models that it serves. */
            reachable: boolean;
            /** @description It generated a token. */
            ready: boolean;
            /** @description The backend that already has this address. */
            used_by: string | null;
            /** @description One line for people. */
            why: string;
        };
        EngineModel: {
            id: string;
            /** @description Prompt and answer together [tokens]. */
            max_model_len: number | null;
        };
        /** @description Prompts that were ahead of a tenant's in the same engine (``telemetry/ledger/prefill.py``). */
        EngineWaits: {
            pool: string;
            /** @description Of the tenant, that had prompts ahead of them. */
            requests: number;
            /** @description Whose prompts, the most tokens first. */
            tenants: components["schemas"]["PromptTokens"][];
            /** @description Added up over them, at most [s]. */
            waited_s: number;
        };
        /** @description A row of the catalog. */
        Entitlement: {
            /** @description The adapter that it is for. null: the pool's own model. */
            adapter: string | null;
            /** @description Depth of the token bucket [tokens]; required with tokens per second. */
            burst_tokens: number;
            /** @description Sequences that may run at once: a request of several answers or prompts takes as many, up to 16. */
            concurrency: number;
            /** @description A short description. */
            description: string;
            /** @description KV cache it may hold at once [tokens]. 0 sets no limit. */
            kv_tokens: number;
            /** @description Name of the pool. */
            pool: string;
            /** @description Whose keys open it. null: those of all projects. */
            project: string | null;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description pending, bound, degraded or expired. */
            state: components["schemas"]["EntitlementStateEnum"];
            state_reason: string;
            /** @description Name of the tenant. */
            tenant: string;
            /** @description Name of the tier. */
            tier: string;
            /** @description Refill of the token bucket [tokens/s]. 0 enforces no token budget. */
            tokens_per_s: number;
            /** @description Starts at this time. Empty: at once. */
            valid_from: string | null;
            /** @description Ends at this time. Empty: never. */
            valid_until: string | null;
        };
        /** @enum {string} */
        EntitlementStateEnum: "pending" | "bound" | "degraded" | "expired";
        ErrorPoint: {
            /** @description Epoch seconds. */
            at: number;
            coverage90: number;
            mae: number;
            /** @description Actual to expected tokens. */
            ratio: number | null;
            requests: number;
        };
        /** @description Errors of predictions [tokens], of all judged answers or of one group. */
        Errors: {
            /** @description Mean output. */
            actual: number;
            /** @description Share of answers within the 90 % limit. */
            coverage90: number;
            /** @description Mean of actual - expected. */
            error: number;
            /** @description Mean prediction. */
            expected: number;
            /** @description Mean absolute error of the prompt's estimate. */
            input_mae: number;
            /** @description Mean absolute error. */
            mae: number;
            /** @description Of the group; missing over all. */
            name?: string;
            requests: number;
        };
        ErrorsByGroup: {
            category: components["schemas"]["Errors"][];
            model: components["schemas"]["Errors"][];
            source: components["schemas"]["Errors"][];
            tenant: components["schemas"]["Errors"][];
        };
        Estimates: {
            by: components["schemas"]["ErrorsByGroup"];
            calibration: components["schemas"]["Level"][];
            from: string;
            overall: components["schemas"]["Errors"] | null;
            /** @description By pool; null while Redis does not answer. */
            pools: {
                [key: string]: components["schemas"]["Learned"];
            } | null;
            to: string;
        };
        EstimatesHistory: {
            factors: components["schemas"]["FactorLine"][];
            from: string;
            points: components["schemas"]["ErrorPoint"][];
            step: components["schemas"]["StepEnum"];
            to: string;
        };
        Event: {
            /** @description Who did it; empty: it happened. */
            actor: string;
            at: string;
            kind: components["schemas"]["EventKindEnum"];
            line: string;
            /** @description Empty: of no single pool. */
            pool: string;
            /** @description Of alerts; else empty. */
            severity: string;
            /** @description The replica, alert, version or object. */
            subject: string;
            tenant: string;
        };
        /**
         * @description * `leader` - leader
         *     * `backend` - backend
         *     * `policy` - policy
         *     * `state` - state
         *     * `trial` - trial
         *     * `alert` - alert
         *     * `resolved` - resolved
         *     * `scaling` - scaling
         *     * `change` - change
         * @enum {string}
         */
        EventKindEnum: "leader" | "backend" | "policy" | "state" | "trial" | "alert" | "resolved" | "scaling" | "change";
        Events: {
            /** @description Newest first. */
            events: components["schemas"]["Event"][];
            from: string;
            to: string;
            /** @description False: there were more than are listed. */
            whole: boolean;
        };
        Explored: {
            /** @description By filter: its commonest values. */
            facets: {
                [key: string]: components["schemas"]["Facet"][];
            };
            groups: components["schemas"]["ExploredGroup"][];
            heat: components["schemas"]["Heat"];
            /** @description Null: not asked for. */
            over_time: components["schemas"]["OverTime"] | null;
            /** @description That fit, and are summed up here. */
            requests: number;
            /** @description Older ones were not looked at; null: all were. */
            searched_to: string | null;
            /** @description Of these, how many were read [0..1]; below 1, counts are estimates. */
            share: number;
        };
        /** @description Requests of one group; durations in seconds, null where none had any. */
        ExploredGroup: {
            name: string;
            requests: number;
            total_p50: number | null;
            total_p95: number | null;
            ttft_p50: number | null;
            ttft_p95: number | null;
            waited_p50: number | null;
            waited_p95: number | null;
        };
        Exported: {
            requests: {
                [key: string]: unknown;
            }[];
            /** @description Complete from then on; null: all of it. */
            searched_to: string | null;
        };
        Facet: {
            requests: number;
            value: string;
        };
        /** @description How predictions of a category are corrected now. */
        Factor: {
            category: string;
            factor: number;
            name: string;
            observed: number;
            scope: string;
        };
        FactorLine: {
            category: string;
            name: string;
            observed: number;
            /** @description [epoch s, factor] */
            points: number[][];
            pool: string;
            scope: string;
        };
        Find: {
            found: components["schemas"]["Found"][];
        };
        Firing: {
            /** @description Epoch seconds. */
            at: number;
            pool: string;
            subject: string;
            /** @description Null: open at the end. */
            until: number | null;
            value: number;
        };
        Found: {
            id: string;
            kind: components["schemas"]["FoundKindEnum"];
            label: string;
            /** @description Paused, draining, revoked, open; else empty. */
            state: string;
            /** @description Whose it is; empty: of no single tenant. */
            tenant: string;
        };
        /**
         * @description * `tenant` - tenant
         *     * `pool` - pool
         *     * `backend` - backend
         *     * `entitlement` - entitlement
         *     * `project` - project
         *     * `key` - key
         *     * `request` - request
         *     * `alert` - alert
         * @enum {string}
         */
        FoundKindEnum: "tenant" | "pool" | "backend" | "entitlement" | "project" | "key" | "request" | "alert";
        /** @description A row of the catalog. */
        GroupRule: {
            created_at: string;
            /** @description The group's name, exactly as the identity provider sends it. */
            group: string;
            id: number;
            /**
             * @description What users in this group may see and change.
             *
             *     * `admin` - admin: changes everything
             *     * `operator` - operator: sees everything, changes policies, drains backends
             *     * `member` - member: sees its own tenant, manages its keys
             */
            role: components["schemas"]["RoleGiven"];
            /** @description Null for admins and operators. */
            tenant: string | null;
        };
        Grown: {
            /** @description Requests per minute in the half hour before those, as far as it is known; null: unknown. */
            before: number | null;
            /** @description Tokens. */
            longest_prompt: number;
            /** @description Requests in the five minutes before. */
            per_minute: number;
            tenant: string;
        };
        /** @description How many requests lie in each cell of time and duration. */
        Heat: {
            /** @description Columns, of equal length. */
            bins: number;
            /** @description [column, row, requests] */
            cells: number[][];
            from: number | null;
            /** @description Upper bounds of the rows [s]; above them is one more. */
            levels_s: number[];
            measure: string;
            /** @description Epoch seconds; null: no request. */
            to: number | null;
        };
        /** @description A tenant that held slots while a request waited. */
        Holder: {
            /** @description Of these, how many came later and went first. */
            overtook: number;
            requests: number;
            /** @description Of all slot-seconds held meanwhile, 0..1. */
            share: number;
            /** @description Slot-seconds held meanwhile. */
            slot_s: number;
            tenant: string;
        };
        Hurt: {
            failed: number;
            /** @description Served, and missed their SLO. */
            late: number;
            refused: number;
            requests: number;
            tenant: string;
            /** @description Had to wait for a slot. */
            waited: number;
        };
        HurtInAll: {
            failed: number;
            late: number;
            refused: number;
            requests: number;
            waited: number;
        };
        Incident: {
            actions: components["schemas"]["Action"][];
            alert: components["schemas"]["Alert"];
            deliveries: components["schemas"]["Delivery"][];
            effect: components["schemas"]["Effect"];
            /** @description From a quarter of an hour before to after its end, oldest first. */
            events: components["schemas"]["Event"][];
            /** @description Whose load had grown before it began. */
            grown: components["schemas"]["Grown"][];
            /** @description False: there were more events. */
            whole: boolean;
        };
        /**
         * @description * `waiting` - waiting
         *     * `running` - running
         * @enum {string}
         */
        InFlightState: "waiting" | "running";
        /** @description What requests of other tiers waited in its pool around the same moment. */
        Instead: {
            /** @description Length of the time looked at. */
            seconds: number;
            /** @description The shortest wait first. */
            tiers: components["schemas"]["InsteadTier"][];
            /** @description Tiers with too few requests then. */
            unknown: string[];
        };
        InsteadTier: {
            requests: number;
            tier: string;
            /** @description Median time to the first token. */
            ttft_s: number | null;
            /** @description Median wait for a slot. */
            waited_s: number;
        };
        /** @description A row of the catalog. */
        Invitation: {
            created_at: string;
            created_by: string | null;
            /** @description The link works until this time, at most 30 days. Empty: 7 days. */
            expires_at: string;
            /** @description The public part. */
            id: string;
            /** @description Who it is for, such as 'Ada, data team'. */
            name: string;
            /**
             * @description The role it gives.
             *
             *     * `admin` - admin: changes everything
             *     * `operator` - operator: sees everything, changes policies, drains backends
             *     * `member` - member: sees its own tenant, manages its keys
             */
            role: components["schemas"]["RoleGiven"];
            /** @description open, used, revoked or expired. */
            status: components["schemas"]["InvitationStatus"];
            /** @description Null for admins and operators. */
            tenant: string | null;
            used_at: string | null;
            /** @description The account it made. */
            used_by: string;
        };
        /** @enum {string} */
        InvitationStatus: "open" | "used" | "revoked" | "expired";
        /** @description A fresh invitation, with its link for the only time. */
        IssuedInvitation: {
            created_at: string;
            created_by: string | null;
            /** @description The link works until this time, at most 30 days. Empty: 7 days. */
            expires_at: string;
            /** @description The public part. */
            id: string;
            /** @description Send it to that person. Shown only in this answer. */
            link: string;
            /** @description Who it is for, such as 'Ada, data team'. */
            name: string;
            /**
             * @description The role it gives.
             *
             *     * `admin` - admin: changes everything
             *     * `operator` - operator: sees everything, changes policies, drains backends
             *     * `member` - member: sees its own tenant, manages its keys
             */
            role: components["schemas"]["RoleGiven"];
            /** @description open, used, revoked or expired. */
            status: components["schemas"]["InvitationStatus"];
            /** @description Null for admins and operators. */
            tenant: string | null;
            used_at: string | null;
            /** @description The account it made. */
            used_by: string;
        };
        /** @description A fresh key, with its secret for the only time. */
        IssuedKey: {
            /** @description Requests that wait or run at once in each pool that it opens. Empty: no limit. */
            concurrency: number | null;
            created_at: string;
            created_by: string | null;
            /** @description Name of the only entitlement it opens. Or a project. */
            entitlement: string | null;
            /** @description Names of those of the project's entitlements that it opens. Empty: all, also later ones. */
            entitlements: string[];
            /** @description Stops working at this time. Empty: never. */
            expires_at: string | null;
            /** @description The public part. */
            id: string;
            /** @description The whole key. Shown only in this answer: keep it now. */
            key: string;
            /** @description What it is for, such as 'nightly reports'. */
            name: string;
            /** @description Names of all entitlements that it opens now. */
            opens: string[];
            /** @description Name of the project whose entitlements it opens. */
            project: string | null;
            /** @description Requests a minute in each pool that it opens. Empty: no limit. */
            requests_per_minute: number | null;
            revoked_at: string | null;
            /** @description active, expired or revoked. */
            status: components["schemas"]["CredentialStatus"];
            tenant: string;
            /** @description Tokens a day (UTC), prompt and answer together, in all pools together. Empty: no limit. */
            tokens_per_day: number | null;
            /** @description Tokens a minute, prompt and answer together, in each pool that it opens. Empty: no limit. */
            tokens_per_minute: number | null;
            /** @description The person or service that its use is attributed to, such as an e-mail address, where requests name no user. */
            user: string;
            /** @description Requests of each user that wait or run at once, in each pool. Empty: no limit. */
            user_concurrency: number | null;
            /** @description Requests a minute of each user, in each pool. Empty: no limit. */
            user_requests_per_minute: number | null;
            /** @description Tokens a minute of each user, prompt and answer together, in each pool. Empty: no limit. */
            user_tokens_per_minute: number | null;
        };
        /** @description A fresh token, with its secret for the only time. */
        IssuedToken: {
            created_at: string;
            /** @description Stops working at this time. Empty: never. */
            expires_at: string | null;
            /** @description The public part. */
            id: string;
            /** @description Id of the token it was made with, and ends with. null: made by a session or a command. */
            made_with: string | null;
            /** @description What it is for, such as 'nightly reports'. */
            name: string;
            revoked_at: string | null;
            /**
             * @description What it may be used for.
             *
             *     * `all` - all: everything its owner may do
             *     * `read` - read: what its owner may see, and no change
             */
            scope: components["schemas"]["TokenScope"];
            /** @description active, expired or revoked. */
            status: components["schemas"]["CredentialStatus"];
            /** @description The whole token. Shown only in this answer: keep it now. */
            token: string;
            /** @description In whose name it acts. */
            user: string;
        };
        /** @description A row of the catalog. */
        Key: {
            /** @description Requests that wait or run at once in each pool that it opens. Empty: no limit. */
            concurrency: number | null;
            created_at: string;
            created_by: string | null;
            /** @description Name of the only entitlement it opens. Or a project. */
            entitlement: string | null;
            /** @description Names of those of the project's entitlements that it opens. Empty: all, also later ones. */
            entitlements: string[];
            /** @description Stops working at this time. Empty: never. */
            expires_at: string | null;
            /** @description The public part. */
            id: string;
            /** @description What it is for, such as 'nightly reports'. */
            name: string;
            /** @description Names of all entitlements that it opens now. */
            opens: string[];
            /** @description Name of the project whose entitlements it opens. */
            project: string | null;
            /** @description Requests a minute in each pool that it opens. Empty: no limit. */
            requests_per_minute: number | null;
            revoked_at: string | null;
            /** @description active, expired or revoked. */
            status: components["schemas"]["CredentialStatus"];
            tenant: string;
            /** @description Tokens a day (UTC), prompt and answer together, in all pools together. Empty: no limit. */
            tokens_per_day: number | null;
            /** @description Tokens a minute, prompt and answer together, in each pool that it opens. Empty: no limit. */
            tokens_per_minute: number | null;
            /** @description The person or service that its use is attributed to, such as an e-mail address, where requests name no user. */
            user: string;
            /** @description Requests of each user that wait or run at once, in each pool. Empty: no limit. */
            user_concurrency: number | null;
            /** @description Requests a minute of each user, in each pool. Empty: no limit. */
            user_requests_per_minute: number | null;
            /** @description Tokens a minute of each user, prompt and answer together, in each pool. Empty: no limit. */
            user_tokens_per_minute: number | null;
        };
        /**
         * @description * `queued` - queued
         *     * `running` - running
         *     * `done` - done
         *     * `failed` - failed
         *     * `cancelled` - cancelled
         * @enum {string}
         */
        LabRunState: "queued" | "running" | "done" | "failed" | "cancelled";
        /** @description What the gateways have learned in one pool. */
        Learned: {
            calibration: components["schemas"]["LimitFactor"][];
            factors: components["schemas"]["Factor"][];
            learned: number;
            predictor: string;
            prompts: number;
        };
        /** @description Requests by prompt length, for the schema. */
        Lengths: {
            /** @description Of the bins [tokens]. */
            edges: number[];
            pool: string;
            /** @description Of the serving policy: lowest and highest prompt length of each queue. */
            queues: number[][];
            /** @description Requests in each bin. */
            recent: number[];
            /** @description Of the long-term sample. */
            sample: number[];
        };
        Level: {
            /** @description Quantile that was predicted. */
            level: number;
            /** @description Share of answers within it. */
            share: number;
        };
        /** @description How the 90 % limit of a predictor is corrected now. */
        LimitFactor: {
            factor: number;
            observed: number;
            source: string;
            tenant: string;
        };
        /** @description Who is signed in, and what that allows. */
        Me: {
            /** @description Policies and draining: admin and operator. */
            may_operate: boolean;
            /** @description Everything: admin. */
            may_write: boolean;
            role: components["schemas"]["MeRoleEnum"];
            /** @description Not only its own tenants: admin and operator. */
            sees_all: boolean;
            /** @description Tenants the user is a member of. */
            tenants: components["schemas"]["MeTenant"][];
            username: string;
        };
        /** @description Simulated against live figures of a pool, as they were last measured. */
        MeasuredTrust: {
            at: string;
            /** @description By tier with an SLO: [live, simulated], % of what was asked for; missing as above. */
            attainment?: {
                [key: string]: number[];
            };
            /** @description [live, simulated], seconds. */
            figures: {
                [key: string]: number[];
            };
            /** @description Largest difference of a tier's attainment [points]; missing as above. */
            points?: number;
            /** @description [live, simulated], % of what was asked for; missing where it was measured by an older release. */
            refused?: number[];
            requests: number;
            /** @description Latencies within 10 %, and the attainment of every tier within 3 points. */
            trusted: boolean;
            /** @description Largest relative difference of a latency. A median is compared with the nearest of the live latencies of 1.5 ranks in 100 around the live one: between two tiers it may move by seconds with one request. */
            worst: number;
        };
        /** @description A row of the catalog. */
        Membership: {
            created_at: string;
            /** @description Given by the identity provider's groups, and taken away with them. */
            from_groups: boolean;
            id: number;
            /**
             * @description What the user may see and change.
             *
             *     * `admin` - admin: changes everything
             *     * `operator` - operator: sees everything, changes policies, drains backends
             *     * `member` - member: sees its own tenant, manages its keys
             */
            role: components["schemas"]["RoleGiven"];
            /** @description Null for admins and operators. */
            tenant: string | null;
            /** @description Name of an existing user. */
            user: string;
        };
        /**
         * @description * `admin` - admin
         *     * `operator` - operator
         *     * `member` - member
         * @enum {string}
         */
        MeRoleEnum: "admin" | "operator" | "member";
        MeTenant: {
            description: string;
            slug: string;
        };
        Moment: {
            at: string;
            pool: string;
            /** @description The longest waiting first, then what ran. */
            rows: components["schemas"]["MomentRow"][];
            running: number;
            tenants: components["schemas"]["MomentTenant"][];
            waiting: number;
            /** @description False: there were more than are listed. */
            whole: boolean;
        };
        MomentRow: {
            backend: string;
            /** @description In that state by then. */
            for_s: number;
            prompt_tokens: number;
            request_id: string;
            state: components["schemas"]["MomentRowStateEnum"];
            tenant: string;
            tier: string;
        };
        /**
         * @description * `waiting` - waiting
         *     * `prefill` - prefill
         *     * `decode` - decode
         * @enum {string}
         */
        MomentRowStateEnum: "waiting" | "prefill" | "decode";
        MomentTenant: {
            /** @description Granted, without a first token. */
            prompt_tokens: number;
            running: number;
            tenant: string;
            waiting: number;
        };
        Neighbours: {
            engines: components["schemas"]["EngineWaits"][];
            /** @description Whether what waits and runs now could be read. */
            live: boolean;
            minutes: number;
            pools: components["schemas"]["PoolWaits"][];
            received: number;
            /** @description By reason. */
            refused: {
                [key: string]: number;
            };
            tenant: string;
        };
        /** @description A tenant that was not there. */
        Newcomer: {
            /** @description The entitlement whose share, tier and requests it has. */
            like: string;
            /** @description Of the tenant and its entitlement; nobody has it yet. */
            name: string;
            /**
             * @description Its requests as a share of theirs, 0.1 to 10.
             * @default 1
             */
            times: number;
        };
        OpenAlerts: {
            critical: number;
            open: number;
            /** @description Pools whose alert rules are not evaluated now, and since when. */
            unwatched: components["schemas"]["Outage"][];
        };
        /** @description A source of data that does not answer (``docs/reference/feed.md``). */
        Outage: {
            /** @description Present and true: it may have been longer. */
            at_least?: boolean;
            /** @description Missing where it concerns no single pool. */
            pool?: string;
            /** @description Of Redis, if it answers with an error: the error's code, such as OOM. */
            refuses?: string;
            /** @description Epoch seconds. */
            since: number;
            source: string;
        };
        /**
         * @description * `refuse` - refuse with 429 and Retry-After
         *     * `wait` - wait in the queue
         * @enum {string}
         */
        OverLimitEnum: "refuse" | "wait";
        /** @description Figures of requests in equal steps of time; null: unknown. */
        OverTime: {
            /** @description By name, one value for each step: counts of the step, attainment [0..1], percentiles [s]. */
            figures: {
                [key: string]: (number | null)[];
            };
            /** @description Epoch seconds. */
            from: number;
            /** @description Of each step, the seconds that were looked at; 0: nothing is known. */
            known_s: number[];
            step_s: number;
        };
        Owner: {
            /** @description Fields of the row that it sets: they are changed there. The others are free. */
            fields_set: string[];
            /** @description Kind of the row, as in files: TokenPool, Tenant and so on. */
            kind: string;
            /** @description Name of the row. */
            name: string;
            /** @description Namespace of the resource. */
            namespace: string;
            /** @description The resource in the cluster: kind, namespace and name. */
            resource: string;
        };
        PaginatedAdapterList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Adapter"][];
        };
        PaginatedAlertList: {
            /** @example http://api.example.org/accounts/?cursor=cD00ODY%3D" */
            next: string | null;
            /** @example http://api.example.org/accounts/?cursor=cj0xJnA9NDg3 */
            previous: string | null;
            results: components["schemas"]["Alert"][];
        };
        PaginatedAuditList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Audit"][];
        };
        PaginatedBackendList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Backend"][];
        };
        PaginatedBatchList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Batch"][];
        };
        PaginatedBudgetList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Budget"][];
        };
        PaginatedEntitlementList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Entitlement"][];
        };
        PaginatedGroupRuleList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["GroupRule"][];
        };
        PaginatedInvitationList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Invitation"][];
        };
        PaginatedKeyList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Key"][];
        };
        PaginatedMembershipList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Membership"][];
        };
        PaginatedOwnerList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Owner"][];
        };
        PaginatedPersonList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Person"][];
        };
        PaginatedPoolList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Pool"][];
        };
        PaginatedPriceList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Price"][];
        };
        PaginatedProjectList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Project"][];
        };
        PaginatedQuotaList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Quota"][];
        };
        PaginatedRecordingList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Recording"][];
        };
        PaginatedRequestList: {
            /** @example http://api.example.org/accounts/?cursor=cD00ODY%3D" */
            next: string | null;
            /** @example http://api.example.org/accounts/?cursor=cj0xJnA9NDg3 */
            previous: string | null;
            results: components["schemas"]["Request"][];
            /** @description Older requests were not searched: `next` goes on there. Null: the page is full, or the ledger was searched to its beginning. */
            searched_to: string | null;
        };
        PaginatedRunList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Run"][];
        };
        PaginatedSessionList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Session"][];
        };
        PaginatedSloList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Slo"][];
        };
        PaginatedTenantList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Tenant"][];
        };
        PaginatedTierList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Tier"][];
        };
        PaginatedTokenList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Token"][];
        };
        PaginatedTrialList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Trial"][];
        };
        PaginatedVersionList: {
            /** @example 123 */
            count: number;
            /** @example http://api.example.org/accounts/?offset=400&limit=100 */
            next: string | null;
            /** @example http://api.example.org/accounts/?offset=200&limit=100 */
            previous: string | null;
            results: components["schemas"]["Version"][];
        };
        /** @description A device that can sign in one's place. */
        Passkey: {
            id: number;
            /** @description That its owner gave it. */
            name: string;
            since: string;
            used_at: string | null;
        };
        PasskeyOptions: {
            /** @description As `PublicKeyCredential.parseCreationOptionsFromJSON` and `parseRequestOptionsFromJSON` read them. */
            options: {
                [key: string]: unknown;
            };
        };
        /**
         * @description * `day` - day (UTC)
         *     * `month` - month (UTC)
         * @enum {string}
         */
        PeriodEnum: "day" | "month";
        /** @description An account, with what it may do and how it gets in. */
        Person: {
            active: boolean;
            /** @description When the identity provider last confirmed them. */
            checked_at: string | null;
            /**
             * @description Of a service account.
             * @default
             */
            description: string;
            email: string;
            /**
             * @description Why the identity provider ended them.
             * @default
             */
            ended_because: string;
            id: number;
            /** @description local: with a password here; provider: through the identity provider; service: a program's. */
            kind: components["schemas"]["PersonKindEnum"];
            last_login: string | null;
            /** @description At the identity provider, when it was asked last. */
            provider_groups: string[] | null;
            roles: components["schemas"]["RoleOfPerson"][];
            /** @description Whether a code or a passkey is asked for after their password. */
            second_factor: boolean;
            /** @description That were not ended. */
            sessions: number;
            /** @description Admin by the command line. */
            superuser: boolean;
            /** @description Access tokens that work. */
            tokens: number;
            /**
             * @description Why it could not be asked since.
             * @default
             */
            trouble: string;
            /** @description Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only. */
            username: string;
        };
        /** @enum {string} */
        PersonKindEnum: "local" | "provider" | "service";
        /**
         * @description * `both` - both: prompts and answers
         *     * `prefill` - prefill: computes prompts, and hands their KV cache to a decode replica
         *     * `decode` - decode: takes that KV cache and writes the answer
         * @enum {string}
         */
        PhaseEnum: "both" | "prefill" | "decode";
        PolicyInfo: {
            kind: components["schemas"]["PolicyInfoKindEnum"];
            name: string;
            params: components["schemas"]["PolicyParameter"][];
            /** @description What it decides, in one line. */
            question: string;
        };
        /**
         * @description * `ordering` - ordering
         *     * `modifier` - modifier
         *     * `routing` - routing
         * @enum {string}
         */
        PolicyInfoKindEnum: "ordering" | "modifier" | "routing";
        /** @description What a parameter of a policy means and what it may be, as its policy declares it. */
        PolicyParameter: {
            /** @description What it may be, for people, such as: above 0. */
            allowed: string;
            /** @description All values that it may have, where these are few, else null. */
            choices: (number | string)[] | null;
            default: unknown;
            /** @description Whether the maximum itself is refused. */
            exclusive_maximum: boolean;
            /** @description Whether the minimum itself is refused. */
            exclusive_minimum: boolean;
            /** @description null where there is no bound on this side, or no number. */
            maximum: number | null;
            /** @description One sentence. */
            meaning: string;
            /** @description null where there is no bound on this side, or no number. */
            minimum: number | null;
            name: string;
            /** @description int, float or str. */
            type: string;
            /** @description null for a plain number or a word. */
            unit: string | null;
        };
        /** @description A row of the catalog. */
        Pool: {
            /** @description Other model names that clients may send, such as ["default"]. */
            aliases: string[];
            /** @description For weight, debt and burst, if they differ from the defaults, such as {"debt": 4.0, "gamma_debt": 0.7, "class_weights": {"elastic": 100}}. */
            coefficients: {
                [key: string]: unknown;
            };
            /** @description Used when a client sends no max_tokens [tokens]. */
            default_output_tokens: number;
            /** @description A short description. */
            description: string;
            /** @description A draining replica is stopped after this long [s], even if requests still run there. */
            drain_limit_s: number;
            /**
             * @description The software of its backends: what they report of themselves and which request fields they take.
             *
             *     * `vllm` - vllm: vLLM
             *     * `openai` - openai: any server with the OpenAI API, without metrics
             *     * `sglang` - sglang: SGLang, started with --enable-metrics
             *     * `vllm_plugin` - vllm_plugin: vLLM with Quartermaster's scheduler inside
             */
            engine: components["schemas"]["EngineEnum"];
            /** @description Free slots kept for requests within a dedicated, guaranteed or elastic baseline, so that these need not wait for one to end. Empty: a sixth of the slots, at most all baselines, where others could take them. 0: all idle slots are lent. */
            headroom_slots: number | null;
            /** @description 2 x layers x KV heads x head size x bytes: 131072 for Llama-3-8B in 16 bit. */
            kv_bytes_per_token: number;
            /** @description KV cache [tokens], draining backends left out. */
            kv_tokens: number;
            /** @description Engines are asked to load adapters that they lack. Off: an engine that allows this lets everyone who can reach it load files, so it is a decision about your network. */
            load_adapters: boolean;
            /** @description Prompt and answer together [tokens]. */
            max_model_len: number;
            /** @description A larger max_tokens is refused [tokens]. */
            max_output_tokens: number;
            /** @description The planner never proposes more. While scaling is on, it limits what may be reserved. */
            max_replicas: number;
            /** @description The planner never proposes fewer. 0: the pool may sleep without any, and the first request brings one; how long it is idle before, and how long a replica takes, have to be set. */
            min_replicas: number;
            /** @description The model name that clients send. */
            model: string;
            /** @description Layers around the policy, by name with parameters, such as {"bands": {}, "fair": {}}. */
            modifiers: {
                [key: string]: unknown;
            };
            /** @description The rule that orders the queue. */
            policy: string;
            /** @description The policy's parameters by name, such as {"alpha": 0.5}. */
            policy_params: {
                [key: string]: unknown;
            };
            /** @description Counts changes of policy, modifiers, routing, their parameters, prefill credit or headroom. */
            policy_version: number;
            /**
             * @description How output lengths are predicted. They order the queue; the bound is reserved and charged.
             *
             *     * `off` - off: every answer is expected to reach its bound
             *     * `history` - history: the key's past answers, else the prompt's category
             *     * `similar` - similar: answers to similar prompts, else as history
             */
            predictor: components["schemas"]["PredictorEnum"];
            /** @description Prompt tokens that a backend may have before their first output token. Empty: adjusted automatically. 0: no bound, requests then wait inside the engine. */
            prefill_credit: number | null;
            /**
             * @description Whose prompts an engine may reuse from its prefix cache: each tenant's requests carry a salt of their own (vLLM's cache_salt), or all tenants share.
             *
             *     * `isolated` - isolated: each tenant finds only its own prompts
             *     * `shared` - shared: tenants find each other's prompts, and can time them
             *     * `unsalted` - unsalted: for engines that refuse cache_salt; shared if they cache
             */
            prefix_cache: components["schemas"]["PrefixCacheEnum"];
            /** @description Reserved and elastic shares together, by dimension. */
            promised: {
                kv_tokens?: number;
                slots?: number;
                tokens_per_s?: number;
            } | null;
            /** @description What the planner may bring the pool to with max_replicas; null while scaling is off. */
            provisionable: {
                kv_tokens?: number;
                slots?: number;
                tokens_per_s?: number;
            } | null;
            /** @description Bodies of waiting requests, over all gateways [bytes]. */
            queue_bytes: number;
            /** @description Requests that may wait in the pool. */
            queue_limit: number;
            /** @description The rule that chooses the backend. */
            routing: string;
            /** @description The routing's parameters by name, such as {"skew_tokens": 100000}. */
            routing_params: {
                [key: string]: unknown;
            };
            /** @description Replicas are removed after fewer have sufficed for this long [s], without another change. */
            scale_down_cooldown_s: number;
            /** @description Minimum time between two increases [s]. */
            scale_up_cooldown_s: number;
            /**
             * @description Who adds and removes replicas.
             *
             *     * `` - none
             *     * `local` - local: processes on the machine of `make up`
             *     * `kubernetes` - kubernetes: the scale of a Deployment
             *     * `webhook` - webhook: a signed call to your own program
             *     * `external` - external: KEDA or an HPA reads the proposed replicas from the API
             */
            scaling_driver: components["schemas"]["ScalingDriverEnum"] | components["schemas"]["BlankEnum"];
            /** @description Capacity kept free above the demand: 0.2 is 20 %. */
            scaling_headroom: number;
            /**
             * @description What proposals of the planner lead to.
             *
             *     * `off` - off
             *     * `advise` - advise: proposals are stored and shown, nothing is done
             *     * `automatic` - automatic: the driver carries proposals out
             */
            scaling_mode: components["schemas"]["ScalingMode"];
            /** @description The driver's parameters by name, such as {"deployment": "vllm-llama"} (docs/guide/scaling.md). */
            scaling_params: {
                [key: string]: unknown;
            };
            /** @description Without any request for this long [s], its replicas are removed where min replicas is 0, and else put to sleep if their engines can. Empty: never. */
            sleep_after_s: number | null;
            /** @description What an entitlement's SLO target is compared with in its weight [s]. Empty: the mean over those bound, so that every tenant that joins moves all weights a little. */
            slo_mean_s: number | null;
            /** @description Sequences that may run at once, draining backends left out. */
            slots: number;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description While the pool is contended, requests below this weight are refused. 0: none. */
            threshold: number;
            /** @description Counts input tokens: the path of a tokenizer.json on the gateways, or 'backend' to ask an engine. Empty: estimated from words and bytes. */
            tokenizer: string;
            /** @description The model name that the engines use. Empty: the same. */
            upstream_model: string;
            /** @description Seconds a sleeping pool takes until it serves; what is measured replaces it. A request that may not wait as long is refused with a time to retry. Empty: 20 s for engines that sleep. */
            wakes_in_s: number | null;
        };
        /** @description The waits of a tenant's requests in one pool. */
        PoolWaits: {
            held: components["schemas"]["Holder"][];
            longest_s: number;
            pool: string;
            requests: number;
            wait_p50_s: number;
            wait_p95_s: number;
            /** @description Time in which at least one of them waited [s]. */
            waited_s: number;
            /** @description False: there was more than is read. */
            whole: boolean;
        };
        /**
         * @description * `off` - off: every answer is expected to reach its bound
         *     * `history` - history: the key's past answers, else the prompt's category
         *     * `similar` - similar: answers to similar prompts, else as history
         * @enum {string}
         */
        PredictorEnum: "off" | "history" | "similar";
        /**
         * @description * `isolated` - isolated: each tenant finds only its own prompts
         *     * `shared` - shared: tenants find each other's prompts, and can time them
         *     * `unsalted` - unsalted: for engines that refuse cache_salt; shared if they cache
         * @enum {string}
         */
        PrefixCacheEnum: "isolated" | "shared" | "unsalted";
        /** @description The order of the queue, as the pool's leader last computed it. */
        Preview: {
            at: number;
            epoch?: number;
            /** @description False: approximate, because the queue is long. */
            exact: boolean;
            /** @description How long a request holds a slot, mean. */
            occupation_s?: number;
            /** @description Waiting for a gateway that is not connected. */
            parked?: number;
            parts?: components["schemas"]["QueuePart"][];
            policy: string;
            requests: components["schemas"]["Waiting"][];
            took_ms?: number;
            waiting?: number;
        };
        /** @description A row of the catalog. */
        Price: {
            /** @description Three letters, such as EUR. */
            currency: string;
            id: number;
            /** @description The adapter that it is for, by the name that clients send. Empty: all that has no price of its own. */
            model: string;
            /** @description A request pays for its slot's share of a GPU while it runs. */
            per_gpu_second: string;
            /** @description Of the input, what the engine's prefix cache held. Empty: as other input. */
            per_million_cached: string | null;
            /** @description 0: prompts cost nothing. */
            per_million_input: string;
            /** @description 0: answers cost nothing. */
            per_million_output: string;
            /** @description And while they stand ready for it. */
            per_reserved_idle_second: string;
            /** @description A dedicated or guaranteed entitlement pays for its slots' share of a GPU while its requests run, beside what these cost. */
            per_reserved_used_second: string;
            /** @description Name of the pool. */
            pool: string;
            /** @description Requests that share one GPU: 64 slots on one GPU are 64. */
            slots_per_gpu: number;
            /** @description Rounded down to the hour. */
            valid_from: string;
        };
        Problem: {
            code: string;
            /** @description Of the input file, the first is 1. */
            line: number | null;
            message: string;
            param: string | null;
        };
        /** @description A row of the catalog. */
        Project: {
            /** @description Names that clients use, and what they stand for: a model or an entitlement, such as {"gpt-4o": "llama-70b"}. */
            aliases: {
                [key: string]: unknown;
            };
            created_at: string;
            /** @description Used for requests that name no model. Empty: such requests are refused. */
            default_model: string;
            /** @description A short description. */
            description: string;
            /** @description By model, what takes its requests when it cannot, and when: unavailable, no_room, over_limit, too_long. Such as {"llama-70b": {"to": "llama-8b", "when": ["unavailable"]}}. */
            fallbacks: {
                [key: string]: unknown;
            };
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description Name of the tenant. */
            tenant: string;
            /** @description Requests of each user that wait or run at once, in each pool. Empty: no limit. */
            user_concurrency: number | null;
            /** @description Requests a minute of each user, in each pool. Empty: no limit. */
            user_requests_per_minute: number | null;
            /** @description Tokens a minute of each user, prompt and answer together, in each pool. Empty: no limit. */
            user_tokens_per_minute: number | null;
        };
        PromptTokens: {
            prompt_tokens: number;
            tenant: string;
        };
        Queue: {
            /** @description State time [s]. */
            at: number;
            pool: string;
            /** @description Null until the leader has computed one. */
            preview: components["schemas"]["Preview"] | null;
            running: components["schemas"]["Running"][];
        };
        /** @description A queue, band or bubble of the policy. */
        QueuePart: {
            /** @description Longest prompt [tokens]. */
            high?: number;
            kind: components["schemas"]["QueuePartKindEnum"];
            /** @description Shortest prompt [tokens]. */
            low?: number;
            name: string;
            score?: number;
            waiting: number;
        };
        /**
         * @description * `band` - band
         *     * `queue` - queue
         *     * `bubble` - bubble
         *     * `relegated` - relegated
         * @enum {string}
         */
        QueuePartKindEnum: "band" | "queue" | "bubble" | "relegated";
        /** @description A row of the catalog. */
        Quota: {
            /** @description Beyond it requests are refused until the period ends [tokens]. Empty: none. */
            hard_tokens: number | null;
            id: number;
            /**
             * @description Calendar day or month in UTC, after which counting begins again.
             *
             *     * `day` - day (UTC)
             *     * `month` - month (UTC)
             */
            period: components["schemas"]["PeriodEnum"];
            /** @description Passing it raises an alert [tokens]. Empty: none. */
            soft_tokens: number | null;
            /** @description Name of the tenant. */
            tenant: string;
        };
        /**
         * @description * `stop` - stop
         *     * `length` - length
         *     * `replayed` - replayed
         *     * `no_key` - no key
         *     * `not_entitled` - not entitled
         *     * `tenant_paused` - tenant paused
         *     * `unknown_model` - unknown model
         *     * `invalid_request` - invalid request
         *     * `too_large` - too large
         *     * `too_long` - too long
         *     * `slow_request` - slow request
         *     * `concurrency` - concurrency
         *     * `key_limit` - key limit
         *     * `user_limit` - user limit
         *     * `token_budget` - token budget
         *     * `kv_budget` - kv budget
         *     * `low_priority` - low priority
         *     * `quota_exceeded` - quota exceeded
         *     * `budget_exceeded` - budget exceeded
         *     * `duplicate` - duplicate
         *     * `already_done` - already done
         *     * `key_reused` - key reused
         *     * `tenant_connections` - tenant connections
         *     * `address_connections` - address connections
         *     * `user_connections` - user connections
         *     * `server_full` - server full
         *     * `queue_full` - queue full
         *     * `queue_timeout` - queue timeout
         *     * `superseded` - superseded
         *     * `no_backend` - no backend
         *     * `waking` - waking
         *     * `no_adapter` - no adapter
         *     * `rebuilding` - rebuilding
         *     * `state_unavailable` - state unavailable
         *     * `shutting_down` - shutting down
         *     * `backend_error` - backend error
         *     * `backend_lost` - backend lost
         *     * `backend_stalled` - backend stalled
         *     * `gateway_lost` - gateway lost
         *     * `evicted` - evicted
         *     * `lease_lost` - lease lost
         *     * `deadline` - deadline
         *     * `slow_reader` - slow reader
         *     * `internal` - internal
         *     * `client_left` - client left
         *     * `operator` - operator
         *     * `key_revoked` - key revoked
         * @enum {string}
         */
        ReasonEnum: "stop" | "length" | "replayed" | "no_key" | "not_entitled" | "tenant_paused" | "unknown_model" | "invalid_request" | "too_large" | "too_long" | "slow_request" | "concurrency" | "key_limit" | "user_limit" | "token_budget" | "kv_budget" | "low_priority" | "quota_exceeded" | "budget_exceeded" | "duplicate" | "already_done" | "key_reused" | "tenant_connections" | "address_connections" | "user_connections" | "server_full" | "queue_full" | "queue_timeout" | "superseded" | "no_backend" | "waking" | "no_adapter" | "rebuilding" | "state_unavailable" | "shutting_down" | "backend_error" | "backend_lost" | "backend_stalled" | "gateway_lost" | "evicted" | "lease_lost" | "deadline" | "slow_reader" | "internal" | "client_left" | "operator" | "key_revoked";
        Recording: {
            at: string;
            author: string;
            id: number;
            name: string;
            pool: string;
            requests: number;
            span_s: number;
        };
        RecoveryCodes: {
            /** @description Each opens the account once, in place of a code of the app. Shown only in this answer. */
            recovery_codes: string[];
        };
        Rehearsal: {
            days: number;
            /** @description Null: unknown, nothing of that time is stored. */
            fired: number | null;
            /** @description The newest. */
            firings: components["schemas"]["Firing"][];
            /** @description Share of the time of which it is known, 0..1. */
            known: number;
            /** @description Pools that were not looked at. */
            left_out: string[];
        };
        /** @description A ledger entry, with the waits between its moments worked out. */
        Request: {
            /** @description JSON: the figures that it was admitted by. */
            admission: string;
            attempts: number;
            backend?: string;
            /** @description Of the input, what the engine had in its cache. */
            cached_tokens: number;
            /** @description What the prompt is about. */
            category: string;
            /** @description How often its client says that it sent it before (x-stainless-retry-count); 0: never, or not said. */
            client_retry: number;
            done_at: string;
            entitlement: string;
            /** @description The predictor that was used. */
            estimate_source: string;
            first_token_at: string | null;
            gateway?: string;
            granted_at: string | null;
            /** @description Where output_tokens is null: as estimated. Null: not known, of an older release. */
            input_tokens: number | null;
            input_tokens_est: number;
            /** @description The entitlement that refused it, where a fallback took it over. */
            instead_of: string;
            /** @description The reason with which that refused it. */
            instead_why: string;
            /** @description How often its prefill was interrupted for a request that would have been late. */
            interruptions?: number;
            /** @description The key's public part. */
            key_id: string;
            /** @description The model name in the request. */
            model: string;
            outcome: components["schemas"]["RequestOutcome"];
            output_bound: number;
            /** @description Share of such answers expected to be shorter than this one was. */
            output_rank: number | null;
            /** @description null: not known; its gateway was lost while it ran, and had told of no token of the answer. */
            output_tokens: number | null;
            output_tokens_est: number;
            /** @description 90 of 100 such answers were expected not to be longer. */
            output_tokens_p90: number;
            /** @description Name@version, or direct where none waited. */
            policy: string;
            pool: string;
            /** @description Of the key, if it has one. */
            project: string;
            /** @description Wait for a slot, also of one who gave up waiting. */
            queue_ms: number | null;
            queued_at: string | null;
            /** @description How long it ran after it was queued, in attempts that were interrupted or failed [s]. It is no part of its wait. */
            ran_before_s?: number;
            reason: components["schemas"]["ReasonEnum"];
            received_at: string;
            request_id: string;
            /** @description Places that it takes while it runs: its answers, or prompts. */
            sequences: number;
            slo_met: boolean | null;
            /** @description As sent to the client; 0 if none was sent. */
            status: number;
            streamed: boolean;
            tbt_slo_s: number | null;
            tenant: string;
            tier: string;
            /** @description Done - received. */
            total_ms: number | null;
            /** @description First token - received. */
            ttft_ms: number | null;
            ttft_slo_s: number | null;
            ttlt_slo_s: number | null;
            /** @description As the request named it, else the user of the key; a digest where it was too long. */
            user: string;
            /** @description Why it was granted then, and on that backend. */
            why: string;
        };
        RequestCost: {
            /** @description Null where tokens have a price and nobody knows how many it used. */
            amount: number | null;
            currency: string;
            /** @description Of input, output, slot; 0 is missing. */
            parts: {
                [key: string]: number;
            };
            slot_s: number;
        };
        /**
         * @description * `completed` - completed
         *     * `refused` - refused
         *     * `failed` - failed
         *     * `cancelled` - cancelled
         * @enum {string}
         */
        RequestOutcome: "completed" | "refused" | "failed" | "cancelled";
        /** @description An ended request with its story. */
        RequestStory: {
            /** @description JSON: the figures that it was admitted by. */
            admission: string;
            attempts: number;
            backend?: string;
            /** @description Of the input, what the engine had in its cache. */
            cached_tokens: number;
            /** @description What the prompt is about. */
            category: string;
            /** @description How often its client says that it sent it before (x-stainless-retry-count); 0: never, or not said. */
            client_retry: number;
            done_at: string;
            entitlement: string;
            /** @description The predictor that was used. */
            estimate_source: string;
            first_token_at: string | null;
            gateway?: string;
            granted_at: string | null;
            /** @description Where output_tokens is null: as estimated. Null: not known, of an older release. */
            input_tokens: number | null;
            input_tokens_est: number;
            /** @description The entitlement that refused it, where a fallback took it over. */
            instead_of: string;
            /** @description The reason with which that refused it. */
            instead_why: string;
            /** @description How often its prefill was interrupted for a request that would have been late. */
            interruptions?: number;
            /** @description The key's public part. */
            key_id: string;
            /** @description The model name in the request. */
            model: string;
            outcome: components["schemas"]["RequestOutcome"];
            output_bound: number;
            /** @description Share of such answers expected to be shorter than this one was. */
            output_rank: number | null;
            /** @description null: not known; its gateway was lost while it ran, and had told of no token of the answer. */
            output_tokens: number | null;
            output_tokens_est: number;
            /** @description 90 of 100 such answers were expected not to be longer. */
            output_tokens_p90: number;
            /** @description Name@version, or direct where none waited. */
            policy: string;
            pool: string;
            /** @description Of the key, if it has one. */
            project: string;
            /** @description Wait for a slot, also of one who gave up waiting. */
            queue_ms: number | null;
            queued_at: string | null;
            /** @description How long it ran after it was queued, in attempts that were interrupted or failed [s]. It is no part of its wait. */
            ran_before_s?: number;
            reason: components["schemas"]["ReasonEnum"];
            received_at: string;
            request_id: string;
            /** @description Places that it takes while it runs: its answers, or prompts. */
            sequences: number;
            slo_met: boolean | null;
            /** @description As sent to the client; 0 if none was sent. */
            status: number;
            story: components["schemas"]["Story"];
            streamed: boolean;
            tbt_slo_s: number | null;
            tenant: string;
            tier: string;
            /** @description Done - received. */
            total_ms: number | null;
            /** @description First token - received. */
            ttft_ms: number | null;
            ttft_slo_s: number | null;
            ttlt_slo_s: number | null;
            /** @description As the request named it, else the user of the key; a digest where it was too long. */
            user: string;
            /** @description Why it was granted then, and on that backend. */
            why: string;
        };
        /** @description A mean over variants and its 95 % interval; of one variant ``low`` and ``high`` are the mean, and say nothing. */
        Result: {
            /** @description To the first policy, in pairs; missing for that one. */
            difference?: components["schemas"]["Difference"];
            figure: string;
            group: string;
            high: number;
            low: number;
            mean: number;
            policy: string;
            /** @description That every policy has. */
            variants: number;
        };
        /** @description The keys that ended. */
        Revoked: {
            /** @description Their ids. */
            revoked: string[];
        };
        /**
         * @description * `admin` - admin: changes everything
         *     * `operator` - operator: sees everything, changes policies, drains backends
         *     * `member` - member: sees its own tenant, manages its keys
         * @enum {string}
         */
        RoleGiven: "admin" | "operator" | "member";
        RoleOfPerson: {
            /** @description Given by the identity provider's groups, and taken away with them. */
            from_groups: boolean;
            /**
             * @description What the user may see and change.
             *
             *     * `admin` - admin: changes everything
             *     * `operator` - operator: sees everything, changes policies, drains backends
             *     * `member` - member: sees its own tenant, manages its keys
             */
            role: components["schemas"]["RoleGiven"];
            tenant: string | null;
        };
        Rule: {
            /** @description Where its alerts are sent as well, by name. None: the default channels. */
            channels: string[];
            /** @description The value at which the alert clears. Empty: the threshold. Between the two nothing changes, so a value that fluctuates raises one alert. */
            clear_threshold: number | null;
            /** @description A rule that is not enabled opens no alerts. */
            enabled: boolean;
            /** @default 60 */
            for_s: number;
            id: number;
            /**
             * @description What the rule measures.
             *
             *     * `slo_attainment` - SLO attainment over the last minute [0..1], below
             *     * `queue_age` - wait of the oldest request in the queue [s], above
             *     * `debt` - service debt of an entitlement, above
             *     * `backend_health` - a backend that receives no work and is not draining
             *     * `quota` - share of a tenant's quota that is used [0..1], above
             *     * `ttft` - p95 of the time to the first token over the last minute [s], above
             *     * `refusals` - share of requests refused over the last minute [0..1], above
             *     * `failures` - share of requests that failed over the last minute [0..1], above
             *     * `engine_queue` - requests waiting inside an engine, above
             *     * `kv_cache` - share of a replica's KV cache in use [0..1], above
             *     * `gpu` - GPU utilization of a replica [0..1], above
             *     * `no_leader` - a pool without a leader
             *     * `cost` - cost of a tenant since midnight UTC [its currency], above
             */
            kind: components["schemas"]["RuleKindEnum"];
            /** @description Shown with its alerts and sent to the webhook. */
            name: string;
            /** @description Its open alerts. */
            open: number;
            /** @description Empty: every pool. */
            pool: string;
            /**
             * @description Shown with its alerts and sent to the webhook.
             *
             *     * `warning` - warning
             *     * `critical` - critical
             */
            severity: components["schemas"]["SeverityEnum"];
            /** @description For SLO, debt, budget, first token, refusals, failures and cost. Empty: the pool as a whole, or each tenant. */
            tenant: string;
            /** @description The alert opens beyond this. A share such as 0.9 for SLO, budget, refusals, failures and KV cache; seconds for queue and first token; requests for the engine queue; the currency for cost; debt as on the overview. Empty for backend health and no leader. */
            threshold: number | null;
            /** @description Only hosts on QUARTERMASTER_WEBHOOK_HOSTS. Empty: QUARTERMASTER_ALERT_WEBHOOK, if it is set. */
            webhook: string;
        };
        /**
         * @description * `slo_attainment` - SLO attainment over the last minute [0..1], below
         *     * `queue_age` - wait of the oldest request in the queue [s], above
         *     * `debt` - service debt of an entitlement, above
         *     * `backend_health` - a backend that receives no work and is not draining
         *     * `quota` - share of a tenant's quota that is used [0..1], above
         *     * `ttft` - p95 of the time to the first token over the last minute [s], above
         *     * `refusals` - share of requests refused over the last minute [0..1], above
         *     * `failures` - share of requests that failed over the last minute [0..1], above
         *     * `engine_queue` - requests waiting inside an engine, above
         *     * `kv_cache` - share of a replica's KV cache in use [0..1], above
         *     * `gpu` - GPU utilization of a replica [0..1], above
         *     * `no_leader` - a pool without a leader
         *     * `cost` - cost of a tenant since midnight UTC [its currency], above
         * @enum {string}
         */
        RuleKindEnum: "slo_attainment" | "queue_age" | "debt" | "backend_health" | "quota" | "ttft" | "refusals" | "failures" | "engine_queue" | "kv_cache" | "gpu" | "no_leader" | "cost";
        Run: {
            /** @description Policies, and what is supposed. */
            asked: components["schemas"]["Asked"];
            at: string;
            author: string;
            done: number;
            finished_at: string | null;
            id: number;
            name: string;
            /** @description The pool whose engines, limits and policy are used. */
            pool: string;
            problem: string;
            recording: string;
            state: components["schemas"]["LabRunState"];
            total: number;
        };
        Running: {
            /** @description State time [s]. */
            arrival_s: number;
            attempt: number;
            /** @description Operators and admins only. */
            backend?: string;
            class: string;
            entitlement: string;
            /** @description Operators and admins only. */
            gateway?: string;
            granted_s: number | null;
            id: string;
            input_tokens: number;
            output_bound: number;
            /** @description Expected. */
            output_tokens: number;
            /** @description Tokens produced so far. */
            served: number;
            tenant: string;
            tier: string;
        };
        /** @description A run with its figures so far. */
        RunResults: {
            /** @description Policies, and what is supposed. */
            asked: components["schemas"]["Asked"];
            at: string;
            author: string;
            done: number;
            finished_at: string | null;
            id: number;
            name: string;
            /** @description The pool whose engines, limits and policy are used. */
            pool: string;
            problem: string;
            recording: string;
            results: components["schemas"]["Result"][];
            state: components["schemas"]["LabRunState"];
            total: number;
            trust: components["schemas"]["MeasuredTrust"] | null;
        };
        SavedView: {
            created_at: string;
            id: number;
            name: string;
            /** @description As in the address, without the question mark. */
            query: string;
        };
        Scaling: {
            decisions: components["schemas"]["Decision"][];
            driver: string;
            max_replicas: number;
            min_replicas: number;
            mode: components["schemas"]["ScalingMode"];
            pool: string;
            /** @description By dimension. */
            promised: {
                [key: string]: number;
            };
            /** @description By dimension. */
            provisionable: {
                [key: string]: number;
            } | null;
            /** @description Null while scaling is off, or the planner has not run. */
            state: components["schemas"]["State"] | null;
        };
        /**
         * @description * `` - none
         *     * `local` - local: processes on the machine of `make up`
         *     * `kubernetes` - kubernetes: the scale of a Deployment
         *     * `webhook` - webhook: a signed call to your own program
         *     * `external` - external: KEDA or an HPA reads the proposed replicas from the API
         * @enum {string}
         */
        ScalingDriverEnum: "local" | "kubernetes" | "webhook" | "external";
        /**
         * @description * `off` - off
         *     * `advise` - advise: proposals are stored and shown, nothing is done
         *     * `automatic` - automatic: the driver carries proposals out
         * @enum {string}
         */
        ScalingMode: "off" | "advise" | "automatic";
        /** @description What one's own account has. */
        SecondFactor: {
            /** @description Whether an authenticator app is one. */
            app: boolean;
            /** @description False: this account has no password here, so there is nothing to add one to. */
            available: boolean;
            /** @description Recovery codes that were not used. */
            codes_left: number;
            /** @description Whether a code or a passkey is asked for after the password. */
            enabled: boolean;
            /** @description Whether this installation wants one. */
            mandatory: boolean;
            passkeys: components["schemas"]["Passkey"][];
            since: string | null;
            /** @description When one was taken last. */
            used_at: string | null;
        };
        /** @description A secret for an authenticator app. */
        SecondFactorOffer: {
            /** @description otpauth://, what the drawing says. */
            address: string;
            /** @description To type in where no code can be scanned. */
            secret: string;
            /** @description A QR code. */
            svg: string;
        };
        /**
         * @description * `dedicated` - dedicated: reserved, may burst
         *     * `guaranteed` - guaranteed: reserved, never bursts
         *     * `elastic` - elastic: baseline over time, owed debt
         *     * `spot` - spot: surplus only, refused first
         *     * `preemptible` - preemptible: surplus only, may be ended
         * @enum {string}
         */
        ServiceClassEnum: "dedicated" | "guaranteed" | "elastic" | "spot" | "preemptible";
        Session: {
            /** @description Where it was begun. */
            address: string;
            /** @description What the browser calls itself. */
            agent: string;
            created_at: string;
            /** @description Whether it is the one that asks. */
            current: boolean;
            id: number;
            user: string;
        };
        /**
         * @description * `warning` - warning
         *     * `critical` - critical
         * @enum {string}
         */
        SeverityEnum: "warning" | "critical";
        /** @description A row of the catalog. */
        Slo: {
            /** @description A short description. */
            description: string;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description Time between tokens [s]. Interactive SLOs have TTFT and TBT. */
            tbt_s: number | null;
            /** @description Time to first token [s]. Interactive SLOs have TTFT and TBT. */
            ttft_s: number | null;
            /** @description Time to last token [s]. SLOs for whole answers have only this. All requests end after QUARTERMASTER_REQUEST_TIMEOUT_S (600 unless set). */
            ttlt_s: number | null;
        };
        Spending: {
            budgets: components["schemas"]["BudgetSpent"][];
            month: string;
        };
        State: {
            at: string;
            /** @description Replicas, without draining ones. */
            current: number;
            /** @description Slots, KV tokens or tokens/s: what is tightest. */
            dimension: string;
            entitled: number;
            /** @description Replicas that drain before removal. */
            leaving: number;
            mode: string;
            per_replica: number;
            reason: string;
            /** @description Refused for lack of capacity, as capacity. */
            refused: number;
            slo_met: number;
            slo_total: number;
            used: number;
            waiting: number;
            /** @description Replicas that the planner proposes now. */
            wanted: number;
        };
        Statement: {
            /** @description Whether the month has ended and all of it is added up. */
            final: boolean;
            from: string;
            lines: components["schemas"]["StatementLine"][];
            month: string;
            to: string;
            /** @description One for each currency; they are never added. */
            totals: components["schemas"]["Amount"][];
        };
        StatementLine: {
            /** @description Exact, as a decimal number. */
            amount: string;
            /** @description Of the input. */
            cached_tokens: number;
            currency: string;
            /** @description Of reserved capacity. */
            entitlement: string;
            input_tokens: number;
            key: string;
            /**
             * @description Requests, or reserved capacity: used, or idle.
             *
             *     * `requests` - requests
             *     * `reserved_used` - reserved_used
             *     * `reserved_idle` - reserved_idle
             */
            kind: components["schemas"]["StatementLineKindEnum"];
            model: string;
            output_tokens: number;
            pool: string;
            /** @description Since when the price held that it was charged by; empty: no price. */
            priced_from: string;
            project: string;
            /** @description Counted once, on the first of a group's lines. */
            requests: number;
            /** @description Exact, as a decimal number. */
            slot_seconds: string;
            tenant: string;
            /** @description Of the requests, those that were lost with their gateway, so that nobody knows their answers: of these, only the prompt is in the sums and in what is charged, as it was estimated. Null: not known of hours of older releases. */
            tokens_unknown: number | null;
            user: string;
        };
        /**
         * @description * `requests` - requests
         *     * `reserved_used` - reserved_used
         *     * `reserved_idle` - reserved_idle
         * @enum {string}
         */
        StatementLineKindEnum: "requests" | "reserved_used" | "reserved_idle";
        /**
         * @description * `minute` - minute
         *     * `hour` - hour
         *     * `day` - day
         * @enum {string}
         */
        StepEnum: "minute" | "hour" | "day";
        /** @description What is told of an ended request beside its row (``telemetry/ledger/story.py``). */
        Story: {
            /** @description Operators and admins only; null where it did not wait. */
            ahead: components["schemas"]["Ahead"] | null;
            checks: components["schemas"]["StoryCheck"][];
            /** @description Null without a price, or where it did not run. */
            cost: components["schemas"]["RequestCost"] | null;
            /** @description Operators and admins only; null without a first token. */
            engine: components["schemas"]["StoryEngine"] | null;
            /** @description Operators and admins only. */
            instead: components["schemas"]["Instead"] | null;
            /** @description Operators and admins only; else empty. */
            positions: components["schemas"]["StoryPlace"][];
            /** @description Null where it was not refused. */
            retry: components["schemas"]["StoryRetry"] | null;
            /** @description How it went and what its time was spent on, in a sentence. */
            verdict: string;
            /** @description Null where unknown. */
            weight: components["schemas"]["StoryWeight"] | null;
        };
        /** @description A rule of admission (``docs/reference/admission.md``), with what it compared where that was recorded. */
        StoryCheck: {
            /** @description Of the token bucket. */
            depth?: number;
            limit?: number | null;
            note?: string;
            rule: string;
            state: components["schemas"]["StoryCheckStateEnum"];
            unit?: string;
            value?: number | null;
        };
        /**
         * @description * `passed` - passed
         *     * `failed` - failed
         *     * `not_reached` - not_reached
         * @enum {string}
         */
        StoryCheckStateEnum: "passed" | "failed" | "not_reached";
        /**
         * @description The time from grant to first token (``telemetry/ledger/prefill.py``): by what its own prompt was predicted to
         *     take, else divided by prompt tokens.
         */
        StoryEngine: {
            /** @description What its own prompt needs; null: unknown, or nothing was ahead. */
            predicted_ms: number | null;
            /** @description Of its own prompt. */
            prefill_ms: number;
            /** @description Of these. */
            prompt_tokens: number;
            /** @description Behind other prompts; without a prediction at most. */
            queue_ms: number;
            /** @description Ahead of it in the same engine. */
            requests: number;
            /** @description Prompt tokens by tenant. */
            tenants: {
                [key: string]: number;
            };
        };
        StoryFactors: {
            burst: number;
            debt: number;
            service_class: number;
            slo: number;
        };
        /** @description The next request of the same key. */
        StoryNext: {
            /** @description After the refusal. */
            after_s: number;
            outcome: string;
            reason: string;
            request_id: string;
        };
        StoryPlace: {
            at: string;
            /** @description In the pool's queue; 0: granted. */
            place: number;
        };
        /** @description What a refused client was asked to wait, and when its key came back. */
        StoryRetry: {
            /** @description Requests of the key that came before the least of it. */
            early: number;
            /** @description The header is spread around it: at least this. */
            least_s: number | null;
            most_s: number | null;
            /** @description Null: none has ended since. */
            next: components["schemas"]["StoryNext"] | null;
            /** @description Null: none came, or it came within the spread. */
            obeyed: boolean | null;
            /** @description Null: no wait was sent, or it was not recorded. */
            told_s: number | null;
        };
        /** @description The weight of its entitlement when it arrived. */
        StoryWeight: {
            /** @description Epoch seconds. */
            at: number;
            burst?: number;
            class?: string;
            debt: number;
            /** @description Whose product the weight is. */
            factors?: components["schemas"]["StoryFactors"];
            /** @description Operators and admins only. */
            slo_mean_s?: number;
            weight?: number;
        };
        /** @description A study under way, or the last one. */
        Study: {
            at: string;
            /** @description The version that served when it began. */
            base: number;
            /** @description Processor time that it has taken [s]. */
            cpu_s: number;
            /** @description Replays so far. */
            done: number;
            ended_at: string | null;
            /** @description When it last went on. */
            heard_at: string | null;
            /** @description Requests of the window. */
            requests: number;
            result: string;
            state: components["schemas"]["StudyState"];
            /** @description Replays that it takes at most. */
            total: number;
            window_from: string;
            window_until: string;
        };
        /**
         * @description * `running` - running: candidates are being replayed
         *     * `ended` - ended: it has a result
         *     * `stopped` - stopped: by a person, by a change of the policy, or because it took too long
         * @enum {string}
         */
        StudyState: "running" | "ended" | "stopped";
        Tail: {
            /** @description To ask with for what is stored after this. */
            place: string;
            results: components["schemas"]["Request"][];
            /** @description False: more ended since than are sent; these are the newest. */
            whole: boolean;
        };
        /** @description A row of the catalog. */
        Tenant: {
            created_at: string;
            /** @description A short description. */
            description: string;
            paused_reason: string;
            /** @description Since then new requests of its keys are refused; admitted requests continue. */
            paused_since: string | null;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
        };
        /** @description A row of the catalog. */
        Tier: {
            /** @description A short description. */
            description: string;
            /** @description Largest schema, regex, grammar or list of choices of one request [bytes]: the engine compiles it before the first token. 0 allows no structured output. */
            max_grammar_bytes: number;
            /** @description A request that waited this long [s] is refused. All requests end after QUARTERMASTER_REQUEST_TIMEOUT_S (600 unless set), waiting included. */
            max_wait_s: number;
            /**
             * @description What happens to a request over the entitlement's concurrency.
             *
             *     * `refuse` - refuse with 429 and Retry-After
             *     * `wait` - wait in the queue
             */
            over_limit: components["schemas"]["OverLimitEnum"];
            /** @description Requests of one entitlement that may wait. 0 refuses instead of queueing. */
            queue_limit: number;
            /** @description Order of tiers for policies that use it: 0 goes first. */
            rank: number;
            /**
             * @description What entitlements of this tier may count on when capacity is short.
             *
             *     * `dedicated` - dedicated: reserved, may burst
             *     * `guaranteed` - guaranteed: reserved, never bursts
             *     * `elastic` - elastic: baseline over time, owed debt
             *     * `spot` - spot: surplus only, refused first
             *     * `preemptible` - preemptible: surplus only, may be ended
             */
            service_class: components["schemas"]["ServiceClassEnum"];
            /** @description Name of the SLO. */
            slo: string;
            /** @description Name in URLs, files and metrics: lower-case letters, digits and hyphens. Cannot be changed later. */
            slug: string;
            /** @description Relative share for policies that use weights. */
            weight: number;
        };
        /** @description A row of the catalog. */
        Token: {
            created_at: string;
            /** @description Stops working at this time. Empty: never. */
            expires_at: string | null;
            /** @description The public part. */
            id: string;
            /** @description Id of the token it was made with, and ends with. null: made by a session or a command. */
            made_with: string | null;
            /** @description What it is for, such as 'nightly reports'. */
            name: string;
            revoked_at: string | null;
            /**
             * @description What it may be used for.
             *
             *     * `all` - all: everything its owner may do
             *     * `read` - read: what its owner may see, and no change
             */
            scope: components["schemas"]["TokenScope"];
            /** @description active, expired or revoked. */
            status: components["schemas"]["CredentialStatus"];
            /** @description In whose name it acts. */
            user: string;
        };
        /**
         * @description * `all` - all: everything its owner may do
         *     * `read` - read: what its owner may see, and no change
         * @enum {string}
         */
        TokenScope: "all" | "read";
        Told: components["schemas"]["RequestStory"] | components["schemas"]["AliveRequest"];
        Traffic: {
            /** @description The setting least_requests. */
            needed: number;
            /** @description So far; at most as many as are needed. */
            requests: number;
            /** @description Only requests from then on count. */
            since: string;
        };
        Trial: {
            at: string;
            /** @description The version that served when it was made. */
            base: number;
            canary_at: string | null;
            canary_until: string | null;
            ended_at: string | null;
            /** @description Result of the replay against the active version. */
            gate: {
                [key: string]: unknown;
            };
            /** @description Result of the guard rails for the canary. */
            guard: {
                [key: string]: unknown;
            };
            id: number;
            /** @description In its study, from 0: the active version. */
            number: number;
            /** @description The policy's parameters that follow from them. */
            params: {
                [key: string]: unknown;
            };
            /** @description Of the reward. */
            parts: {
                [key: string]: unknown;
            };
            reason: string;
            /** @description Requests of the recording it was tried on. */
            requests: number;
            reward: number | null;
            /** @description All that it changes of the pool: policy, parameters, modifiers, routing and room. Null: only the parameters. */
            setting: unknown;
            state: components["schemas"]["TrialStateEnum"];
            /** @description Start of its study: one window, several trials. */
            study: string;
            /** @description The knobs. */
            values: {
                [key: string]: unknown;
            };
            /** @description Its own, once it has served. */
            version: number | null;
            /** @description When the canary was last judged. */
            watched_at: string | null;
            window_from: string;
            window_until: string;
        };
        /**
         * @description * `proposed` - proposed: tried on a recording, or waiting to be started
         *     * `rejected` - rejected: it did not win on the recording
         *     * `canary` - canary: active under guard rails
         *     * `promoted` - promoted: it is kept
         *     * `rolled_back` - rolled back: the version before is active again
         *     * `aborted` - aborted: it could not be judged, the version before is active
         * @enum {string}
         */
        TrialStateEnum: "proposed" | "rejected" | "canary" | "promoted" | "rolled_back" | "aborted";
        /** @description Another object than the pool that a trial changes. */
        TriedObject: {
            kind: components["schemas"]["TriedObjectKindEnum"];
            name: string;
            /** @description Fields of the object, with the values to try. */
            values: {
                [key: string]: unknown;
            };
        };
        /**
         * @description * `entitlement` - entitlement
         *     * `tier` - tier
         *     * `backend` - backend
         * @enum {string}
         */
        TriedObjectKindEnum: "entitlement" | "tier" | "backend";
        Trust: {
            calibrations: components["schemas"]["Calibration"][];
            minutes: number;
            pool: string;
            /** @description Null where there was nothing to compare. */
            trust: components["schemas"]["TrustFigures"] | null;
        };
        TrustFigures: {
            /** @description By tier with an SLO: [live, simulated], % of what was asked for; missing as above. */
            attainment?: {
                [key: string]: number[];
            };
            /** @description [live, simulated], seconds. */
            figures: {
                [key: string]: number[];
            };
            /** @description Largest difference of a tier's attainment [points]; missing as above. */
            points?: number;
            /** @description [live, simulated], % of what was asked for; missing where it was measured by an older release. */
            refused?: number[];
            requests: number;
            /** @description Latencies within 10 %, and the attainment of every tier within 3 points. */
            trusted: boolean;
            /** @description Largest relative difference of a latency. A median is compared with the nearest of the live latencies of 1.5 ranks in 100 around the live one: between two tiers it may move by seconds with one request. */
            worst: number;
        };
        Tuning: {
            /** @description All settings, defaults included. */
            effective: {
                [key: string]: number;
            };
            mode: components["schemas"]["TuningMode"];
            /** @description Where they differ from the defaults (docs/guide/tuning.md), such as {"interval_s": 600}. */
            settings: {
                [key: string]: unknown;
            };
            /** @description The study under way, else the last one; null before the first. */
            study: components["schemas"]["Study"] | null;
            /** @description What the replay of a proposed trial still waits for; null where none waits. */
            traffic: components["schemas"]["Traffic"] | null;
            /** @description How far the simulated figures of its trials are from live ones; null where that is not known. */
            trust: components["schemas"]["MeasuredTrust"] | null;
            /** @description Why winners wait to be started in automatic mode: simulated figures are further from live ones than the setting most_error, or nobody knows how far they are. Empty: they start by themselves. */
            waits: string;
        };
        /**
         * @description * `off` - off: no tuning
         *     * `advise` - advise: candidates are tried on recordings and listed, nothing is changed
         *     * `automatic` - automatic: winners become canaries, and are kept or rolled back
         * @enum {string}
         */
        TuningMode: "off" | "advise" | "automatic";
        Usage: {
            columns: string[];
            from: string;
            rows: components["schemas"]["UsageRow"][];
            to: string;
        };
        /** @description Figures of one group; the names it is grouped by stand beside them. */
        UsageRow: {
            /** @description slo_met / slo_asked; null: nothing was asked. */
            attainment: number | null;
            /** @description Of slo_asked that are no retries, met / asked; null: not known, or nothing was asked. */
            attainment_first: number | null;
            /** @description slo_met / slo_total, without refusals. */
            attainment_served: number | null;
            cached_tokens: number;
            cancelled: number;
            completed: number;
            /** @description Null where currencies are mixed. */
            cost: number | null;
            currency: string;
            failed: number;
            input_tokens: number;
            output_tokens: number;
            refused: number;
            requests: number;
            /** @description These, and such that were refused with 429 or 503. */
            slo_asked: number;
            slo_met: number;
            /** @description Of slo_asked, retries as their clients say; null: not known of hours of older releases. */
            slo_retries: number | null;
            /** @description Served requests to which an SLO applies. */
            slo_total: number;
            slot_s: number;
            /** @description Of the requests, those that were lost with their gateway, so that nobody knows their answers: of these, only the prompt is in the sums and in what is charged, as it was estimated. Null: not known of hours of older releases. */
            tokens_unknown: number | null;
        };
        Version: {
            at: string;
            author: string;
            author_kind: components["schemas"]["AuthorKindEnum"];
            /** @description Field or parameter: [before, after]. */
            changes: {
                [key: string]: unknown;
            };
            modifiers: {
                [key: string]: unknown;
            };
            /** @description The pool's policy version. */
            number: number;
            /** @description The version before it. */
            parent: number | null;
            /** @description Queue boundaries [tokens], of a policy that has any. */
            partition: string;
            policy: string;
            policy_params: {
                [key: string]: unknown;
            };
            reason: string;
            /** @description The version whose content this one restores. */
            restores: number | null;
            /** @description The pool's prefill credit and headroom, null where they are automatic. Null as a whole: written by a release that did not keep them, and left as they are when this version is restored. */
            room: unknown;
            routing: string;
            routing_params: {
                [key: string]: unknown;
            };
            /** @description Whether it decides now. */
            serving: boolean;
        };
        Waiting: {
            /** @description State time [s]. */
            arrival_s: number;
            attempt: number;
            /** @description Operators and admins only. */
            backend?: string;
            class: string;
            deadline_s?: number;
            entitlement: string;
            expires_s?: number;
            id: string;
            input_tokens: number;
            kv_tokens: number;
            /** @description Expected. */
            output_tokens: number;
            /** @description Among all; for members within the entitlement. */
            place: number;
            priority?: number;
            /** @description Expected start. Operators and admins only. */
            start_s?: number;
            tenant: string;
            tier: string;
            /** @description Operators and admins only. */
            why?: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
