#include "dtrain/config/input/assign.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/overloaded.h"
#include "dtrain/base/text/nearest.h"
#include "dtrain/base/text/number.h"
#include "dtrain/config/schema/schema.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

// Units of settings whose values may be given in other units: "10m", "200MB".
constexpr std::string_view kSeconds = "seconds";
constexpr std::string_view kMegabytesPerSecond = "MB/s";

template <typename T>
constexpr bool kIsAutomatic = false;
template <typename T>
constexpr bool kIsAutomatic<std::optional<T>> = true;

template <typename T>
constexpr std::string_view type_words() {
  if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) return "auto or a whole number";
  if constexpr (std::is_same_v<T, std::optional<double>>) return "auto or a number";
  if constexpr (std::is_same_v<T, bool>) return "on or off";
  if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, std::uint64_t>) return "a whole number from 0 to 2^64-1";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  return "a list of names";
}

// "a whole number of steps"
template <typename T>
std::string value_words(const Setting& setting) {
  if (setting.unit == kSeconds) return std::string(base::kDurationForms);
  const std::string number =
      fmt::format("{}{}{}", type_words<T>(), setting.unit.empty() ? "" : " of ", setting.unit);
  return setting.unit == kMegabytesPerSecond ? number + ", or with a unit as in 200MB" : number;
}

template <typename T>
[[noreturn]] void wrong_type(const Setting& setting, std::string_view origin,
                             std::string_view found) {
  const std::string range = setting.allowed.range.text();
  fail(ErrorKind::usage, "{}: found {}, but it must be {}{}{}", origin, found,
       value_words<T>(setting), range.empty() ? "" : "; ", range);
}

// Parses a number in the setting's unit; times and rates may have another unit.
std::optional<double> number_from_text(const Setting& setting, std::string_view text) {
  constexpr double kMegabyte = 1e6;
  if (const auto number = base::number_in<double>(text)) return number;
  if (setting.unit == kSeconds) return base::seconds_in(text);
  if (setting.unit != kMegabytesPerSecond) return std::nullopt;
  const std::string_view rate = base::without_per_second(text);  // "200MB/s"
  if (const auto number = base::number_in<double>(rate)) return number;
  const auto bytes = base::bytes_in(rate);
  return bytes ? std::optional(static_cast<double>(*bytes) / kMegabyte) : std::nullopt;
}

// automatic: the user gave the word for it. number: what else was given, if it is a number.
template <typename T>
std::optional<T> automatic_or(bool automatic, const std::optional<typename T::value_type>& number) {
  if (automatic) return T();
  return number ? std::optional<T>(T(number)) : std::nullopt;
}

template <typename T>
std::optional<T> from_text(const Setting& setting, std::string_view text) {
  if constexpr (std::is_same_v<T, bool>) {
    return parse_switch(text);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return std::string(text);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const auto items = items_of(text);
    T names(items.begin(), items.end());
    if (text.ends_with(',')) names.pop_back();
    return names;
  } else if constexpr (kIsAutomatic<T>) {
    using Number = typename T::value_type;
    return automatic_or<T>(text == kAutomatic, from_text<Number>(setting, text));
  } else if constexpr (std::integral<T>) {
    return base::whole_number_in<T>(text);
  } else {
    return number_from_text(setting, text);
  }
}

template <typename T>
std::optional<T> plain_from_value(const Setting& setting, const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.is_string()) return parse_switch(value.get_ref<const std::string&>());
    if (!value.is_boolean()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    if (value.is_number_float()) return base::as_whole_number<T>(value.get<double>());  // 1e4
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    if (value.is_number_float()) return base::as_whole_number<T>(value.get<double>());
    if (!value.is_number_unsigned()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, double>) {
    const auto* text = value.get_ptr<const std::string*>();
    const bool takes_units = setting.unit == kSeconds || setting.unit == kMegabytesPerSecond;
    if (text != nullptr && takes_units) return number_from_text(setting, *text);
    if (!value.is_number()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value.is_number_integer()) return value.dump();  // 256 for "256", which may also be "all"
    if (value.is_number_float()) {
      const auto whole = base::as_whole_number<std::int64_t>(value.get<double>());
      return whole ? std::optional(std::to_string(*whole)) : std::nullopt;
    }
    if (!value.is_string()) return std::nullopt;
  } else {
    if (!value.is_array()) return std::nullopt;
    for (const Json& item : value) {
      if (!item.is_string()) return std::nullopt;
    }
  }
  return value.get<T>();
}

template <typename T>
std::optional<T> from_value(const Setting& setting, const Json& value) {
  if constexpr (kIsAutomatic<T>) {
    using Number = typename T::value_type;
    return automatic_or<T>(value == kAutomatic, plain_from_value<Number>(setting, value));
  } else {
    return plain_from_value<T>(setting, value);
  }
}

struct Alias {
  std::string_view word;
  std::string_view choice;
};
// Other programs' names for our choices, if too different for base::nearest; in any case.
constexpr Alias kAliases[] = {
    {"fp16", "float16"},    {"half", "float16"},        {"bf16", "bfloat16"},
    {"fp32", "float32"},    {"float", "float32"},       {"single", "float32"},
    {"fp64", "float64"},    {"double", "float64"},      {"gpu", "cuda"},
    {"adam", "adamw"},      {"deepspeed", "zero"},      {"horovod", "ddp"},
    {"zero1", "zero"},      {"zero2", "zero"},          {"zero3", "zero"},
    {"fsdp2", "fsdp"},      {"none", "single"},         {"mistral", "llama"},
    {"qwen2", "llama"},     {"qwen2.5", "llama"},       {"qwen3", "llama"},
    {"smollm2", "llama"},   {"tinyllama", "llama"},     {"nanogpt", "gpt2"},
    {"distilgpt2", "gpt2"}, {"FULL_SHARD", "full"},     {"SHARD_GRAD_OP", "grad-op"},
    {"NO_SHARD", "none"},   {"HYBRID_SHARD", "hybrid"},
};

// The most similar choice; null if none is close.
const Choice* nearest_choice(const Setting& setting, std::string_view value) {
  std::vector<std::string_view> names;
  for (const Choice& choice : setting.allowed.choices) names.push_back(choice.name);
  const auto find = [&](std::string_view name) -> const Choice* {
    const auto found = std::ranges::find(setting.allowed.choices, name, &Choice::name);
    return found == setting.allowed.choices.end() ? nullptr : &*found;
  };
  // "cuda:0" is a device, "torch.float16" a dtype, "ShardingStrategy.FULL_SHARD" a sharding.
  const std::string_view before = value.substr(0, value.find(':'));
  const std::string_view after = value.substr(value.rfind('.') + 1);
  const auto are_equal = [](std::string_view one, std::string_view other) {
    const auto lower = [](unsigned char c) { return std::tolower(c); };
    return std::ranges::equal(one, other, {}, lower, lower);
  };
  for (const Alias& alias : kAliases) {
    if (!are_equal(alias.word, value) && !are_equal(alias.word, after)) continue;
    if (const Choice* choice = find(alias.choice)) return choice;
  }
  for (const std::string_view part : {before, after}) {
    if (const Choice* choice = find(part)) return choice;
  }
  return find(base::nearest(value, names));
}

void check_choice(const Setting& setting, std::string_view origin, std::string_view value) {
  if (std::ranges::count(setting.allowed.choices, value, &Choice::name) > 0) return;
  const std::string choices = choices_text(setting);
  constexpr std::string_view kNccl[] = {"nccl"};
  if (setting.key == "machine.backend" && !base::nearest(value, kNccl).empty()) {
    fail(ErrorKind::usage,
         "{}: nccl is used automatically with --device cuda; omit --backend, or use one of {}",
         origin, choices);
  }
  if (std::error_code error;
      setting.key == "model.name" &&
      (value.find('/') != value.npos || std::filesystem::exists(value, error))) {
    fail(ErrorKind::usage,
         "{}: found the path \"{}\" instead of an architecture, one of {}; to start from these "
         "weights give --init-from {}",
         origin, value, choices, value);
  }
  const Choice* meant = nearest_choice(setting, value);
  fail(ErrorKind::usage, "{}: found \"{}\", but it must be {}{}{}", origin, value,
       choices.find(',') == choices.npos ? "" : "one of ", choices,
       meant == nullptr ? "" : base::did_you_mean(meant->name));
}

// Parses a text into the field.
void assign_parsed(const Setting& setting, std::string_view origin, const std::string& text,
                   Config& config) {
  if (!is_utf8(text)) fail(ErrorKind::usage, "{}: found text that is not UTF-8", origin);
  if (!setting.allowed.choices.empty()) check_choice(setting, origin, text);
  if (std::get<TextField>(setting.field).read(text, config)) return;
  fail(ErrorKind::usage, "{}: found \"{}\", but it must be {}", origin, text,
       setting.allowed.syntax);
}

template <typename T>
void check_value(const Setting& setting, std::string_view origin, const T& value) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    for (const std::string& name : value) {
      if (name.empty()) fail(ErrorKind::usage, "{}: an empty name in the list", origin);
    }
  } else if constexpr (kIsAutomatic<T>) {
    if (value) check_value(setting, origin, *value);
  } else if constexpr (!std::is_same_v<T, bool>) {
    const double number = static_cast<double>(value);
    if (!std::isfinite(number) || !setting.allowed.range.contains(number)) {
      const std::string range = setting.allowed.range.text();
      fail(ErrorKind::usage, "{}: found {}, but it must be {}{}", origin, value,
           std::isfinite(number) ? "" : "a finite number, ", range);
    }
  }
}

// Sets a field of any type. read<T>() returns the user's value as a T, or nothing if it is not one.
template <typename Read>
void assign(const Setting& setting, std::string_view origin, std::string_view found, Config& config,
            const Read& read) {
  const auto typed = [&]<typename T>() {
    std::optional<T> value = read.template operator()<T>();
    if (!value) wrong_type<T>(setting, origin, found);
    return *std::move(value);
  };
  const auto text = [&](const TextField&) {
    assign_parsed(setting, origin, typed.template operator()<std::string>(), config);
  };
  const auto plain = [&]<typename T>(FieldOf<T> field) {
    T value = typed.template operator()<T>();
    check_value(setting, origin, value);
    field(config) = std::move(value);
  };
  std::visit(base::Overloaded{text, plain}, setting.field);
}

}  // namespace

bool is_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

std::optional<bool> parse_switch(std::string_view text) {
  if (text == "on" || text == "true" || text == "True") return true;
  if (text == "off" || text == "false" || text == "False") return false;
  return std::nullopt;
}

void assign_text(const Setting& setting, std::string_view text, std::string_view origin,
                 Config& config) {
  assign(setting, origin, fmt::format("\"{}\"", text), config,
         [&]<typename T>() { return from_text<T>(setting, text); });
}

void append_text(const Setting& setting, const std::string& text, std::string_view origin,
                 Config& config) {
  using List = std::vector<std::string>;
  if (!is_utf8(text)) fail(ErrorKind::usage, "{}: found text that is not UTF-8", origin);
  check_value(setting, origin, List{text});
  std::get<FieldOf<List>>(setting.field)(config).push_back(text);
}

void assign_json(const Setting& setting, const Json& value, std::string_view origin,
                 Config& config) {
  assign(setting, origin, value.dump(-1, ' ', true), config,
         [&]<typename T>() { return from_value<T>(setting, value); });
}

Json value_json(const Setting& setting, const Config& config) {
  const auto text = [&](const TextField& field) -> Json { return field.text(config); };
  // Accessors take a mutable Config but only return a reference to a member, so the cast is safe.
  const auto plain = [&]<typename T>(FieldOf<T> field) -> Json {
    const T& value = field(const_cast<Config&>(config));
    if constexpr (kIsAutomatic<T>) {
      return value ? Json(*value) : Json(kAutomatic);
    } else {
      return value;
    }
  };
  return std::visit(base::Overloaded{text, plain}, setting.field);
}

std::string value_text(const Setting& setting, const Config& config) {
  const Json value = value_json(setting, config);
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_array())
    return fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ","));
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string default_text(const Setting& setting) {
  static const Config plain;
  return value_text(setting, plain);
}

bool is_default(const Setting& setting, const Config& config) {
  return value_text(setting, config) == default_text(setting);
}

std::vector<std::pair<std::string, std::string>> value_texts(Command command,
                                                             const Config& config) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Setting& setting : settings()) {
    if (setting.is_used(command, config)) {
      texts.emplace_back(setting.key, value_text(setting, config));
    }
  }
  return texts;
}

std::string_view name_of(Command command) noexcept {
  constexpr std::string_view kNames[] = {
      "train",  "generate", "verify",  "checkpoint export", "checkpoint import",
      "doctor", "plan",     "evaluate"};
  return kNames[std::bit_width(static_cast<unsigned>(command)) - 1];
}

const Setting* find_key(std::string_view key) noexcept {
  const auto found = std::ranges::find_if(settings(), [&](const Setting& setting) {
    return setting.key == key || (!key.empty() && setting.former.key == key);
  });
  return found == settings().end() ? nullptr : &*found;
}

const Setting* find_flag(std::string_view flag) noexcept {
  const auto found = std::ranges::find_if(settings(), [&](const Setting& setting) {
    return setting.flag == flag || (!flag.empty() && setting.former.flag == flag);
  });
  return found == settings().end() ? nullptr : &*found;
}

bool Range::contains(double value) const noexcept {
  if (bounds == Bounds::none) return true;
  const bool is_above = bounds == Bounds::open_below ? value > lowest : value >= lowest;
  return is_above && (bounds == Bounds::open_above ? value < highest : value <= highest);
}

std::string Range::text() const {
  // Settings are whole or simple numbers: %g would print 16777216 as 1.67772e+07.
  const auto number = [](double value) { return fmt::format("{}", value); };
  if (bounds == Bounds::none) return {};
  if (bounds == Bounds::open_above) {
    return fmt::format("at least {} and below {}", number(lowest), number(highest));
  }
  if (bounds == Bounds::open_below) {
    return fmt::format("above {}, at most {}", number(lowest), number(highest));
  }
  if (highest == std::numeric_limits<double>::max()) return "at least " + number(lowest);
  return number(lowest) + " to " + number(highest);
}

std::string Range::brief() const {
  constexpr double kPracticalLimit = 1e6;
  if (bounds == Bounds::closed && highest >= kPracticalLimit)
    return fmt::format("at least {}", lowest);
  if (bounds == Bounds::open_below && highest >= kPracticalLimit)
    return fmt::format("above {}", lowest);
  return text();
}

std::string choices_text(const Setting& setting) {
  std::string names;
  for (const Choice& choice : setting.allowed.choices) {
    if (!names.empty()) names += ", ";
    names += choice.name;
  }
  return names;
}

}  // namespace dtrain::config
