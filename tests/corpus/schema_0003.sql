-- A corpus of revision 0003, as the last version that wrote it made one.
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
CREATE TABLE findings (
    id INTEGER NOT NULL,
    signature TEXT NOT NULL,
    status VARCHAR(32) NOT NULL,
    verdict VARCHAR(32) NOT NULL,
    confidence VARCHAR(16),
    culprit JSON,
    evidence JSON,
    severity VARCHAR(32),
    umbrella VARCHAR(64),
    issue TEXT,
    note TEXT,
    duplicate_of_id INTEGER,
    searched DATETIME,
    queries JSON,
    hits INTEGER NOT NULL,
    first_seen DATETIME NOT NULL,
    last_seen DATETIME NOT NULL,
    best_run_id INTEGER,
    best_reproducer_id INTEGER,
    speaks_by_reproducer BOOLEAN DEFAULT 0 NOT NULL,
    case_id INTEGER,
    CONSTRAINT pk_findings PRIMARY KEY (id),
    CONSTRAINT uq_findings_signature UNIQUE (signature),
    CONSTRAINT fk_findings_duplicate_of_id_findings FOREIGN KEY(duplicate_of_id) REFERENCES findings (id),
    CONSTRAINT fk_findings_best_run_id_runs FOREIGN KEY(best_run_id) REFERENCES runs (id),
    CONSTRAINT fk_findings_best_reproducer_id_reproducers FOREIGN KEY(best_reproducer_id) REFERENCES reproducers (id),
    CONSTRAINT fk_findings_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id)
);
CREATE TABLE former_names (
    id INTEGER NOT NULL,
    finding_id INTEGER NOT NULL,
    signature TEXT NOT NULL,
    merged_id INTEGER,
    CONSTRAINT pk_former_names PRIMARY KEY (id),
    CONSTRAINT fk_former_names_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id),
    CONSTRAINT uq_former_names_merged_id UNIQUE (merged_id)
);
CREATE TABLE related (
    id INTEGER NOT NULL,
    finding_id INTEGER NOT NULL,
    url TEXT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    title TEXT NOT NULL,
    state VARCHAR(16) NOT NULL,
    score FLOAT NOT NULL,
    why TEXT NOT NULL,
    CONSTRAINT pk_related PRIMARY KEY (id),
    CONSTRAINT uq_related_finding_id_url UNIQUE (finding_id, url),
    CONSTRAINT fk_related_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id)
);
CREATE TABLE replays (
    id INTEGER NOT NULL,
    finding_id INTEGER NOT NULL,
    reproducer_sha256 VARCHAR(64) NOT NULL,
    torch TEXT NOT NULL,
    torch_git TEXT,
    status VARCHAR(32) NOT NULL,
    runs JSON NOT NULL,
    output TEXT NOT NULL,
    seconds FLOAT NOT NULL,
    created DATETIME NOT NULL,
    CONSTRAINT pk_replays PRIMARY KEY (id),
    CONSTRAINT fk_replays_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id)
);
CREATE TABLE reproducers (
    id INTEGER NOT NULL,
    finding_id INTEGER NOT NULL,
    case_id INTEGER,
    environment_id INTEGER,
    sha256 VARCHAR(64) NOT NULL,
    source TEXT NOT NULL,
    lines INTEGER NOT NULL,
    kind VARCHAR(32) NOT NULL,
    confirmed BOOLEAN NOT NULL,
    torch TEXT NOT NULL,
    report JSON,
    neighbour TEXT,
    program VARCHAR(64),
    shown JSON,
    created DATETIME NOT NULL,
    CONSTRAINT pk_reproducers PRIMARY KEY (id),
    CONSTRAINT uq_reproducers_finding_id_sha256 UNIQUE (finding_id, sha256),
    CONSTRAINT fk_reproducers_finding_id_findings FOREIGN KEY(finding_id) REFERENCES findings (id),
    CONSTRAINT fk_reproducers_case_id_cases FOREIGN KEY(case_id) REFERENCES cases (id),
    CONSTRAINT fk_reproducers_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id)
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
CREATE TABLE umbrellas (
    name VARCHAR(64) NOT NULL,
    status VARCHAR(32) NOT NULL,
    issue TEXT,
    note TEXT,
    CONSTRAINT pk_umbrellas PRIMARY KEY (name)
);
CREATE INDEX ix_findings_severity ON findings (severity);
CREATE INDEX ix_findings_umbrella ON findings (umbrella);
CREATE INDEX ix_former_names_finding_id ON former_names (finding_id);
CREATE INDEX ix_former_names_signature ON former_names (signature);
CREATE INDEX ix_replays_finding_id ON replays (finding_id);
CREATE INDEX ix_reproducers_case_id ON reproducers (case_id);
CREATE INDEX ix_reproducers_program ON reproducers (program);
CREATE INDEX ix_runs_campaign_id ON runs (campaign_id);
CREATE INDEX ix_runs_case_id ON runs (case_id);
CREATE INDEX ix_runs_finding_id_environment_id ON runs (finding_id, environment_id);
CREATE INDEX ix_runs_stream_stream_index ON runs (stream, stream_index);
CREATE INDEX ix_runs_verdict ON runs (verdict);
CREATE TABLE fuzzcompile_schema (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT fuzzcompile_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO fuzzcompile_schema VALUES ('0003');
