// The one door between the front end and libdtrain.so.
#pragma once

extern "C" {

/// Runs one command to its end and returns the exit status (docs/guide/exit-status.md); no exception
/// leaves it.
///
/// request: what config::to_request gives for a command and its resolved configuration;
///          config::from_request reads it. The run folder exists and holds no other run.
__attribute__((visibility("default"))) int dtrain_run(const char* request);
}
