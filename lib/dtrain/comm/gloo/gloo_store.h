// The job's store, as LibTorch's gloo expects it. Private to comm/gloo.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "dtrain/comm/rendezvous/store_client.h"

namespace dtrain::comm {

/// Exchanges the addresses of one group: gloo sets its own under a key that ends with its rank in
/// the group, then asks for each member's. All come with the first question, in one request.
/// Refuses calls that gloo does not make.
class GlooStore final : public c10d::Store {
 public:
  /// `key`: of the exchange; `members`: world ranks, in group order. The client outlives this.
  GlooStore(StoreClient& client, std::string key, std::vector<std::int64_t> members,
            std::chrono::milliseconds timeout)
      : c10d::Store(timeout),
        client_(client),
        key_(std::move(key)),
        members_(std::move(members)),
        deadline_(timeout) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  c10::intrusive_ptr<c10d::Store> clone() override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;

 private:
  StoreClient& client_;
  std::string key_;
  std::vector<std::int64_t> members_;
  base::Deadline deadline_;
  std::string own_;
  std::vector<std::string> addresses_;  // by member, once they have been exchanged
};

}  // namespace dtrain::comm
