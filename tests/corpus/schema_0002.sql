-- A corpus of revision 0002, the first that was released.
CREATE TABLE environments (
    id INTEGER NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    torch TEXT NOT NULL,
    device TEXT,
    driver TEXT,
    compiler TEXT,
    cpu TEXT,
    details JSON NOT NULL,
    CONSTRAINT pk_environments PRIMARY KEY (id),
    CONSTRAINT uq_environments_sha256 UNIQUE (sha256)
);
CREATE TABLE cases (
    id INTEGER NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    source TEXT NOT NULL,
    origin VARCHAR(32) NOT NULL,
    spec JSON,
    choices BLOB,
    idioms JSON NOT NULL,
    near_misses JSON NOT NULL,
    features JSON DEFAULT '[]' NOT NULL,
    created DATETIME NOT NULL,
    CONSTRAINT pk_cases PRIMARY KEY (id),
    CONSTRAINT uq_cases_sha256 UNIQUE (sha256)
);
CREATE TABLE findings (
    id INTEGER NOT NULL,
    signature TEXT NOT NULL,
    status VARCHAR(32) NOT NULL,
    verdict VARCHAR(32) NOT NULL,
    confidence VARCHAR(16),
    culprit JSON,
    evidence JSON,
    hits INTEGER NOT NULL,
    first_seen DATETIME NOT NULL,
    last_seen DATETIME NOT NULL,
    best_run_id INTEGER,
    CONSTRAINT pk_findings PRIMARY KEY (id),
    CONSTRAINT uq_findings_signature UNIQUE (signature),
    CONSTRAINT fk_findings_best_run_id_runs FOREIGN KEY(best_run_id) REFERENCES runs (id)
);
CREATE TABLE campaigns (
    id INTEGER NOT NULL,
    environment_id INTEGER NOT NULL,
    seed BIGINT NOT NULL,
    settings JSON NOT NULL,
    command TEXT NOT NULL,
    fuzzcompile_version TEXT NOT NULL,
    counters JSON NOT NULL,
    started DATETIME NOT NULL,
    last_heard DATETIME NOT NULL,
    finished DATETIME,
    ended VARCHAR(32),
    CONSTRAINT pk_campaigns PRIMARY KEY (id),
    CONSTRAINT fk_campaigns_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id)
);
CREATE TABLE reproducers (
    id INTEGER NOT NULL,
    finding_id INTEGER NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    source TEXT NOT NULL,
    lines INTEGER NOT NULL,
    kind VARCHAR(32) NOT NULL,
    confirmed BOOLEAN NOT NULL,
    torch TEXT NOT NULL,
    report JSON,
    neighbour TEXT,
    created DATETIME NOT NULL,
    CONSTRAINT pk_reproducers PRIMARY KEY (id),
    CONSTRAINT uq_reproducers_finding_id_sha256 UNIQUE (finding_id, sha256),
    CONSTRAINT fk_reproducers_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id)
);
CREATE TABLE rewrite_coverage (
    id INTEGER NOT NULL,
    torch TEXT NOT NULL,
    stage VARCHAR(32) NOT NULL,
    pass_name TEXT NOT NULL,
    rewrite TEXT NOT NULL,
    outcome VARCHAR(16) NOT NULL,
    count BIGINT NOT NULL,
    first_case_id INTEGER NOT NULL,
    CONSTRAINT pk_rewrite_coverage PRIMARY KEY (id),
    CONSTRAINT uq_rewrite_coverage_torch_stage_pass_name_rewrite_outcome UNIQUE (torch, stage, pass_name, rewrite, outcome),
    CONSTRAINT fk_rewrite_coverage_first_case_id_cases FOREIGN KEY(first_case_id) REFERENCES cases (id)
);
CREATE TABLE runs (
    id INTEGER NOT NULL,
    case_id INTEGER NOT NULL,
    environment_id INTEGER NOT NULL,
    campaign_id INTEGER,
    finding_id INTEGER,
    stream TEXT,
    stream_index BIGINT,
    verdict VARCHAR(32) NOT NULL,
    is_bug BOOLEAN NOT NULL,
    screened BOOLEAN DEFAULT 0 NOT NULL,
    seconds FLOAT,
    compiles INTEGER,
    report JSON NOT NULL,
    created DATETIME NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT fk_runs_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id),
    CONSTRAINT fk_runs_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id),
    CONSTRAINT fk_runs_campaign_id_campaigns FOREIGN KEY(campaign_id) REFERENCES campaigns (id),
    CONSTRAINT fk_runs_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id)
);
CREATE INDEX ix_runs_campaign_id ON runs (campaign_id);
CREATE INDEX ix_runs_stream_stream_index ON runs (stream, stream_index);
CREATE INDEX ix_runs_verdict ON runs (verdict);
CREATE INDEX ix_runs_case_id ON runs (case_id);
CREATE INDEX ix_runs_finding_id ON runs (finding_id);
CREATE TABLE fuzzcompile_schema (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT fuzzcompile_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO fuzzcompile_schema VALUES ('0002');
