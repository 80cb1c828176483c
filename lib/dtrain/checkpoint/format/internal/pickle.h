// A Python pickle parser that executes no code.
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

/// A value of a pickle, decoded as far as weight files need it.
struct PickleValue {
  enum class Kind {
    other,       ///< None, a float, a set, ...
    integer,     ///< or a boolean; at most 64 bits
    text,        ///< or bytes
    sequence,    ///< a list or a tuple
    dict,        ///< or an OrderedDict
    global,      ///< the name of a class or function
    object,      ///< the result of a call, which is not executed
    persistent,  ///< a reference to data outside the pickle
  };

  Kind kind = Kind::other;
  std::int64_t integer = 0;
  std::string text = {};  ///< for a global: "MODULE NAME"
  /// Indices of values in the pickle: elements of a sequence; alternating keys and values of a
  /// dict; the callable and the arguments of an object; the id of a persistent value.
  std::vector<std::size_t> items = {};
};

/// The values of one pickle of protocol 2 or later. Calls are recorded as objects; classes and
/// functions named in the file are never looked up.
///
/// Throws:  the constructor calls `refuse`, which throws, if the pickle is truncated or malformed.
/// Threads: any number of readers.
class Pickle {
 public:
  Pickle(std::span<const std::byte> bytes, const Refuse& refuse);

  [[nodiscard]] const PickleValue& root() const { return values_[root_]; }
  [[nodiscard]] const PickleValue& at(std::size_t place) const { return values_[place]; }
  /// Returns an argument of an object's call, or null if it has fewer.
  [[nodiscard]] const PickleValue* argument(const PickleValue& object, std::size_t index) const;
  /// Returns the callable of an object as "MODULE NAME"; empty for other values.
  [[nodiscard]] std::string_view callable(const PickleValue& value) const;

 private:
  friend class PickleReader;

  std::vector<PickleValue> values_;
  std::size_t root_ = 0;
};

}  // namespace dtrain::checkpoint::format
