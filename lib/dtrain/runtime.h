// The one door between the front end and libdtrain.so.
#pragma once

extern "C" {

/// Runs one command to its end and returns the exit status (docs/exit-status.md); no exception
/// leaves it.
///
/// resolved_config: what config::to_json gives for a checked configuration, with "command": "train"
/// | "generate" | "verify".
__attribute__((visibility("default"))) int dtrain_run(const char* resolved_config);
}
