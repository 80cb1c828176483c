// The words in which rows of the table of settings are written (schema.cpp, and each family's own).
#pragma once

#include <limits>
#include <optional>
#include <utility>

#include "dtrain/config/schema.h"

namespace dtrain::config::rows {

inline constexpr CommandSet kTrain = static_cast<unsigned>(Command::train);
inline constexpr CommandSet kGenerate = static_cast<unsigned>(Command::generate);
inline constexpr CommandSet kVerify = static_cast<unsigned>(Command::verify);
inline constexpr CommandSet kExport = static_cast<unsigned>(Command::export_checkpoint);
inline constexpr CommandSet kImport = static_cast<unsigned>(Command::import_checkpoint);
inline constexpr CommandSet kPlan = std::bit_floor(static_cast<unsigned>(Command::plan));
inline constexpr CommandSet kEvaluate = static_cast<unsigned>(Command::evaluate);
// What computes with a model.
inline constexpr CommandSet kModel = kTrain | kGenerate | kVerify | kEvaluate;
inline constexpr CommandSet kEngine = kTrain | kVerify;
inline constexpr CommandSet kAll = kModel | kExport | kImport;

constexpr Range between(double lowest, double highest) {
  return {Range::Bounds::closed, lowest, highest};
}
constexpr Range from_to_below(double lowest, double highest) {
  return {Range::Bounds::open_above, lowest, highest};
}
constexpr Range above(double lowest, double highest) {
  return {Range::Bounds::open_below, lowest, highest};
}
constexpr Range at_least(double lowest) {
  return between(lowest, std::numeric_limits<double>::max());
}

constexpr std::span<const Choice> one_of(std::span<const Choice> choices) { return choices; }
constexpr Form form(std::string_view text) { return {text}; }

template <typename Value>
std::optional<Value> read(std::string_view text) {
  if constexpr (ParsedValue<Value>) return Value::parse(text);
  if constexpr (std::is_same_v<Value, std::string>) return std::string(text);
  if constexpr (Word<Value>) {
    for (const Choice& choice : words_of(Value{})) {
      if (choice.name == text) return static_cast<Value>(choice.value);
    }
  }
  return std::nullopt;
}

/// Where the member lies that `pick` returns, and how its type is read and written.
template <typename Pick>
constexpr Field field_of(Pick pick) {
  using Value = std::remove_reference_t<decltype(pick(std::declval<Config&>()))>;
  if constexpr (Word<Value> || ParsedValue<Value> || std::is_same_v<Value, std::string>) {
    return TextField{
        .read =
            [](std::string_view text, Config& config) {
              std::optional<Value> value = read<Value>(text);
              if (value) Pick{}(config) = *std::move(value);
              return value.has_value();
            },
        .text = [](const Config& config) { return fmt::format("{}", Pick{}(config)); }};
  } else {
    return FieldOf<Value>(pick);
  }
}

template <typename Settings, typename Value>
Settings struct_of(Value Settings::*);

/// A member of a family's own settings: kOwn<&Settings::heads>.
template <auto member>
inline constexpr Field kOwn = field_of([](auto& config) -> auto& {
  return config.model.own.template of<decltype(struct_of(member))>().*member;
});

inline constexpr ResumeRule kFixed = [](const Config&, const Config&) { return OnResume::fixed; };
inline constexpr ResumeRule kNoted = [](const Config&, const Config&) { return OnResume::noted; };

template <const Need&... all>
inline constexpr Effect kNeeds{{&all...}};
template <const Need&... all>
inline constexpr Effect kValueNeeds{{&all...}, /*names_value=*/true};

template <const Need& need>
inline constexpr ResumeRule kNotedWith = [](const Config& now, const Config&) {
  return need.is_met(now) ? OnResume::noted : OnResume::free;
};

inline constexpr Condition kChangesBits = [](const Config&) { return true; };
constexpr Condition changes_bits(Condition where) { return where; }

}  // namespace dtrain::config::rows
