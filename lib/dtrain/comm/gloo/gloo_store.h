// The job's store, as LibTorch's gloo expects it. Private to comm/gloo.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "dtrain/comm/rendezvous/store_client.h"

namespace dtrain::comm {

/// Keys of one group, by which gloo exchanges its addresses. Refuses calls that gloo does not make.
class GlooStore final : public c10d::Store {
 public:
  /// The client outlives this.
  GlooStore(StoreClient& client, std::string prefix, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), client_(client), prefix_(std::move(prefix)) {}

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;

 private:
  std::string find(const std::string& key, std::chrono::milliseconds timeout);

  StoreClient& client_;
  std::string prefix_;
};

}  // namespace dtrain::comm
