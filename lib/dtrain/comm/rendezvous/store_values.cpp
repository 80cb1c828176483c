#include "dtrain/comm/rendezvous/store_values.h"

#include <fmt/format.h>

#include <utility>

namespace dtrain::comm {

std::string StoreValues::set(const std::string& key, std::string value) {
  if (key.size() > limits_.key_bytes) {
    return fmt::format("a key of {} bytes, where {} are allowed", key.size(), limits_.key_bytes);
  }
  const auto old = values_.find(key);
  const std::size_t replaced = old == values_.end() ? 0 : key.size() + old->second.size();
  const std::size_t bytes = bytes_ - replaced + key.size() + value.size();
  if (bytes > limits_.bytes || (replaced == 0 && values_.size() >= limits_.keys)) {
    return fmt::format("{} keys with {} bytes, where {} keys and {} bytes are allowed",
                       values_.size() + (replaced == 0 ? 1 : 0), bytes, limits_.keys,
                       limits_.bytes);
  }
  bytes_ = bytes;
  values_[key] = std::move(value);
  return {};
}

const std::string* StoreValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

}  // namespace dtrain::comm
