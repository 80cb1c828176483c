// A reader of Python pickles that builds values and executes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/checkpoint/format/internal/strict_json.h"

namespace dtrain::checkpoint::format {

/// A value of a pickle, as far as files of weights need it.
struct PickleValue {
  enum class Kind {
    other,       ///< None, a float, a set, ...
    integer,     ///< a boolean too; at most 64 bits
    text,        ///< bytes too
    sequence,    ///< a list or a tuple
    dict,        ///< an OrderedDict too
    global,      ///< the name of a class or function
    object,      ///< what a call would have made
    persistent,  ///< what stands outside the pickle
  };

  Kind kind = Kind::other;
  std::int64_t integer = 0;
  std::string text = {};  ///< of a global: "MODULE NAME"
  /// Places in the pickle: elements of a sequence; keys and values of a dict in turn; the callable
  /// and the arguments of an object; the id of a persistent value.
  std::vector<std::size_t> items = {};
};

/// The values of one pickle of protocol 2 or later. Calls are kept as objects, so that no class and
/// no function that a file names is ever looked up.
///
/// Throws:  the constructor what `refuse` throws: the pickle is truncated or malformed.
/// Threads: any number of readers.
class Pickle {
 public:
  Pickle(std::span<const std::byte> bytes, const Refuse& refuse);

  [[nodiscard]] const PickleValue& root() const { return values_[root_]; }
  [[nodiscard]] const PickleValue& at(std::size_t place) const { return values_[place]; }
  /// The argument of an object's call, or null if it has fewer.
  [[nodiscard]] const PickleValue* argument(const PickleValue& object, std::size_t index) const;
  /// The callable of an object as "MODULE NAME"; empty for other values.
  [[nodiscard]] std::string_view callable(const PickleValue& value) const;

 private:
  friend class PickleReader;

  std::vector<PickleValue> values_;
  std::size_t root_ = 0;
};

}  // namespace dtrain::checkpoint::format
