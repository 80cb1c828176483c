// The only entry point of libdtrain.so.
#pragma once

extern "C" {

/// Runs one command and returns its exit status (docs/guide/exit-status.md); never throws.
///
/// request: a command and its resolved configuration, from config::to_request. The run folder must
///          exist and hold no other run.
__attribute__((visibility("default"))) int dtrain_run(const char* request);
}
