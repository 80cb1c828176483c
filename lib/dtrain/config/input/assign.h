// One value into one field, checked.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/config/schema/schema.h"

namespace dtrain::config {

/// Objects keep the order in which they were written.
using Json = nlohmann::ordered_json;

/// True for "on" and "true", false for "off" and "false", also as Python writes them; nothing for
/// other texts.
[[nodiscard]] std::optional<bool> truth_in(std::string_view text);

/// Sets `setting` in `config` from the text of a flag.
///
/// origin:  what the user wrote it in, for messages: "--width", "--set model.width".
/// Throws:  Error{usage} naming origin, what was found and what is allowed.
void assign_text(const Setting& setting, std::string_view text, std::string_view origin,
                 Config& config);

/// Sets `setting` in `config` from a value of a file; as assign_text.
void assign_json(const Setting& setting, const Json& value, std::string_view origin,
                 Config& config);

/// The setting's value in `config` as files have it: words and values with a text as texts.
[[nodiscard]] Json value_json(const Setting& setting, const Config& config);

/// The setting's value in `config` as a flag would give it: "256", "on", "adamw"; a list with
/// commas.
[[nodiscard]] std::string value_text(const Setting& setting, const Config& config);

/// value_text where nothing sets it, and whether `config` has that.
[[nodiscard]] std::string default_text(const Setting& setting);
[[nodiscard]] bool is_default(const Setting& setting, const Config& config);

/// Key and value_text of every setting that `command` uses, in the schema's order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> value_texts(Command command,
                                                                           const Config& config);

}  // namespace dtrain::config
