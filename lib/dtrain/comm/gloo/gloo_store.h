// The store of records that LibTorch's gloo expects. Private to comm/gloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "dtrain/comm/gloo/gloo_record.h"

namespace dtrain::comm {

/// Holds the records of a group's members, which they have exchanged before: gloo sets its own
/// under a key that ends with its rank in the group, then asks for each member's. No call blocks.
/// Refuses calls that gloo does not make.
class GlooStore final : public c10d::Store {
 public:
  /// members: in group order, this rank's own among them; empty: this rank is alone, and is to
  /// learn its record.
  explicit GlooStore(std::vector<GlooRecord> members = {}) : members_(std::move(members)) {}

  /// The record that gloo has set, of a rank that is alone.
  [[nodiscard]] GlooRecord own_record() const { return parse_record(own_, 1); }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}
  c10::intrusive_ptr<c10d::Store> clone() override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;

 private:
  std::vector<GlooRecord> members_;
  std::string own_;  // as gloo wrote it
};

}  // namespace dtrain::comm
