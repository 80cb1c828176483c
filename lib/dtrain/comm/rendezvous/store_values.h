// The values in a job's store. Private to comm/rendezvous.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace dtrain::comm {

/// Texts by key, within limits: ranks may be many, and wrong, but rank 0's memory is not theirs.
class StoreValues {
 public:
  struct Limits {
    std::size_t keys = std::size_t{1} << 18;
    std::size_t key_bytes = 1024;
    std::size_t bytes = std::size_t{256} << 20;  // of all keys and values
  };

  StoreValues() = default;
  explicit StoreValues(const Limits& limits) : limits_(limits) {}

  /// Empty, or in one line why the value is not kept.
  [[nodiscard]] std::string set(const std::string& key, std::string value);
  /// nullptr where there is none.
  [[nodiscard]] const std::string* find(const std::string& key) const;

 private:
  Limits limits_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

}  // namespace dtrain::comm
