// Configurations as JSON text: printed, saved in run folders, and handed to libdtrain.so.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/saved_run.h"
#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The settings that `command` uses, as an indented JSON object {"model": {"name": ...}, ...} in
/// the order of the schema, without a final newline. Numbers keep every bit.
[[nodiscard]] std::string to_json(Command command, const Config& config);

/// The inverse: settings that the text lacks have their defaults, and those that older builds had
/// are passed over.
///
/// Throws: Error{usage} as a configuration file.
[[nodiscard]] Config from_json(std::string_view text);

/// The front end's request to libdtrain.so (runtime.h).
struct Request {
  Command command = Command::train;
  Config config;
  StartRecord record = {};
};

/// {"command": "train", "config": {...}, "asked": {...}, "provenance": {...}, "quiet": false, "verbose": false}
[[nodiscard]] std::string to_request(const Request& request);
[[nodiscard]] Request from_request(std::string_view text);

}  // namespace dtrain::config
