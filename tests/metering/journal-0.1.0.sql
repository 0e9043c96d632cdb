BEGIN TRANSACTION;
CREATE TABLE capacity (
	id INTEGER NOT NULL, 
	series INTEGER NOT NULL, 
	node TEXT NOT NULL, 
	amount BIGINT NOT NULL, 
	since BIGINT NOT NULL, 
	until BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "capacity" VALUES(1,3,'n1',8000,1790000000000,NULL);
CREATE TABLE days (
	start BIGINT NOT NULL, 
	series INTEGER NOT NULL, 
	level_high BIGINT NOT NULL, 
	level_low BIGINT NOT NULL, 
	moment_high BIGINT NOT NULL, 
	moment_low BIGINT NOT NULL, 
	PRIMARY KEY (start, series)
)
 WITHOUT ROWID

;
INSERT INTO "days" VALUES(1789948800000,1,0,0,13,1765425152);
INSERT INTO "days" VALUES(1789948800000,2,0,4000,29,1845948416);
INSERT INTO "days" VALUES(1789948800000,3,0,8000,65,2427125760);
CREATE TABLE hours (
	start BIGINT NOT NULL, 
	series INTEGER NOT NULL, 
	level_high BIGINT NOT NULL, 
	level_low BIGINT NOT NULL, 
	moment_high BIGINT NOT NULL, 
	moment_low BIGINT NOT NULL, 
	PRIMARY KEY (start, series)
)
 WITHOUT ROWID

;
INSERT INTO "hours" VALUES(1789999200000,1,0,8000,5,925163520);
INSERT INTO "hours" VALUES(1789999200000,3,0,8000,5,925163520);
INSERT INTO "hours" VALUES(1790002800000,2,0,4000,2,2610065408);
INSERT INTO "hours" VALUES(1790006400000,1,-1,4294959296,-6,3369803776);
CREATE TABLE journal (
	id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	writer TEXT NOT NULL, 
	batch BIGINT NOT NULL, 
	heartbeat BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "journal" VALUES(1,1,'w',1,1790010800000);
CREATE TABLE series (
	id INTEGER NOT NULL, 
	tenant TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	pool TEXT NOT NULL, 
	namespace TEXT NOT NULL, 
	resource TEXT NOT NULL, 
	model TEXT NOT NULL, 
	state TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (tenant, queue, pool, namespace, resource, model, state)
);
INSERT INTO "series" VALUES(1,'red','kueue/q','p','ns','nvidia.com/gpu','NVIDIA-H100-80GB-HBM3','');
INSERT INTO "series" VALUES(2,'blue','kueue/q','p','other','cpu','','');
INSERT INTO "series" VALUES(3,'','','p','','nvidia.com/gpu','NVIDIA-H100-80GB-HBM3','in-service');
CREATE TABLE usage (
	id INTEGER NOT NULL, 
	series INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	pod TEXT NOT NULL, 
	pod_uid TEXT NOT NULL, 
	node TEXT NOT NULL, 
	amount BIGINT NOT NULL, 
	since BIGINT NOT NULL, 
	until BIGINT, 
	labels TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "usage" VALUES(1,1,'ns/train','ns/train-0','u0','n1',8000,1790000000000,1790007200000,'{"team":"vision"}');
INSERT INTO "usage" VALUES(2,2,'other/a','other/a','u1','n1',4000,1790003600000,NULL,'');
CREATE INDEX usage_since ON usage (series, since, amount);
CREATE INDEX usage_until ON usage (series, until, amount);
CREATE INDEX usage_open ON usage (id) WHERE until IS NULL;
CREATE INDEX capacity_since ON capacity (series, since, amount);
CREATE INDEX capacity_open ON capacity (id) WHERE until IS NULL;
CREATE INDEX capacity_until ON capacity (series, until, amount);
COMMIT;
