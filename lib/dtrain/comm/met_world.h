// A world whose ranks are processes that met through a store. Private to comm.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// Holds the store as long as groups are made.
class MetWorld : public World {
 public:
  MetWorld(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous)
      : options_(options), rendezvous_(std::move(rendezvous)) {}

  [[nodiscard]] std::int64_t rank() const override { return options_.rank; }
  [[nodiscard]] std::int64_t size() const override { return options_.size; }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }

  [[nodiscard]] std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                    std::string_view name) override {
    // Numbered, since a store's keys must not be used twice.
    const std::string key = fmt::format("group {} '{}'", splits_++, name);
    return make_queued_group(ranks, name, rank(), options_.group,
                             [&](const GroupIdentity& identity) { return connect(key, identity); });
  }
  [[nodiscard]] ProcessGroup& control() override { return *control_; }

  /// Rank 0 serves the others until they have ended it too.
  void end_meeting() override {
    rendezvous_->store->leave();
    if (rendezvous_->server) rendezvous_->server->finish();
  }

 protected:
  /// Makes control(). Constructors end with it.
  void make_control() { control_ = split(ranks_below(size()), kControlName); }
  /// The transport of a group of several, whose keys in the store begin with `key`.
  virtual std::unique_ptr<Transport> connect(const std::string& key,
                                             const GroupIdentity& identity) = 0;
  [[nodiscard]] const WorldOptions& options() const { return options_; }

 private:
  WorldOptions options_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::int64_t splits_ = 0;  // the same on every rank, since split is collective
  std::shared_ptr<ProcessGroup> control_;
};

}  // namespace dtrain::comm
