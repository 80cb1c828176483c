// Conversion between setting values and text or JSON, with validation.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// JSON whose objects preserve the order of insertion.
using Json = nlohmann::ordered_json;

/// Configurations are saved as JSON, which must be UTF-8.
[[nodiscard]] bool is_utf8(const std::string& text);

/// True for "on", "true" and "True", false for "off", "false" and "False"; empty for other texts.
[[nodiscard]] std::optional<bool> parse_switch(std::string_view text);

/// Sets `setting` in `config` from the text of a flag.
///
/// origin:  the flag or file key, for messages: "--width", "--set model.width".
/// Throws:  Error{usage} naming origin, the value found and the allowed values.
void assign_text(const Setting& setting, std::string_view text, std::string_view origin,
                 Config& config);

/// Adds the text of a flag to a repeatable setting.
///
/// Throws: Error{usage} naming origin if the text is empty or not UTF-8.
void append_text(const Setting& setting, const std::string& text, std::string_view origin,
                 Config& config);

/// As assign_text, from a value in a file.
void assign_json(const Setting& setting, const Json& value, std::string_view origin,
                 Config& config);

/// The setting's value in `config` as written in files. Enums and types of values.h become strings.
[[nodiscard]] Json value_json(const Setting& setting, const Config& config);

/// The setting's value in `config` as written in a flag: "256", "on", "adamw"; commas separate list
/// items.
[[nodiscard]] std::string value_text(const Setting& setting, const Config& config);

/// value_text of the default.
[[nodiscard]] std::string default_text(const Setting& setting);
/// True if `config` has the setting's default.
[[nodiscard]] bool is_default(const Setting& setting, const Config& config);

/// Key and value_text of every setting that `command` uses, in schema order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> value_texts(Command command,
                                                                           const Config& config);

}  // namespace dtrain::config
