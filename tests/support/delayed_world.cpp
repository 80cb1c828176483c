#include "support/delayed_world.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/comm/queued_group.h"

namespace dtrain::testing {
namespace {

std::vector<std::int64_t> counts_of(const comm::PartedTensor& tensor) {
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < tensor.ranks(); ++rank) counts.push_back(tensor.count(rank));
  return counts;
}

/// Carries calls out through another group, late.
class DelayedTransport final : public comm::Transport {
 public:
  DelayedTransport(std::shared_ptr<comm::ProcessGroup> inner, std::chrono::milliseconds delay)
      : inner_(std::move(inner)), delay_(delay) {}

  std::int64_t all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                          const base::Deadline&) override {
    return late([&] { return inner_->all_reduce(tensor, op); });
  }
  std::int64_t reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                              const base::Deadline&) override {
    return late([&] { return inner_->reduce_scatter(input, output); });
  }
  std::int64_t all_gather(const at::Tensor& input, const comm::PartedTensor& output,
                          const base::Deadline&) override {
    return late([&] { return inner_->all_gather_v(input, output.tensor(), counts_of(output)); });
  }
  std::int64_t all_to_all(const comm::PartedTensor& input, const comm::PartedTensor& output,
                          const base::Deadline&) override {
    return late([&] {
      return inner_->all_to_all(input.tensor(), counts_of(input), output.tensor(),
                                counts_of(output));
    });
  }
  std::int64_t broadcast(const at::Tensor& tensor, std::int64_t root,
                         const base::Deadline&) override {
    return late([&] { return inner_->broadcast(tensor, root); });
  }
  std::int64_t send(const at::Tensor& tensor, std::int64_t peer, const base::Deadline&) override {
    inner_->send(tensor, peer).wait();
    return static_cast<std::int64_t>(tensor.nbytes());
  }
  std::int64_t recv(const at::Tensor& tensor, std::int64_t peer, const base::Deadline&) override {
    inner_->recv(tensor, peer).wait();
    return 0;
  }
  std::int64_t barrier(const base::Deadline&) override {
    inner_->barrier();
    return 0;
  }
  void close(const std::string& reason) noexcept override { inner_->abort(reason); }

 private:
  template <typename Call>
  std::int64_t late(Call&& call) {
    std::this_thread::sleep_for(delay_);
    const std::int64_t before = inner_->calls().counters().bytes_sent;
    call().wait();
    return inner_->calls().counters().bytes_sent - before;
  }

  std::shared_ptr<comm::ProcessGroup> inner_;
  std::chrono::milliseconds delay_;
};

}  // namespace

std::shared_ptr<comm::ProcessGroup> DelayedWorld::split(std::span<const std::int64_t> ranks,
                                                        std::string_view name) {
  std::shared_ptr<comm::ProcessGroup> inner = inner_.split(ranks, name);
  if (inner == nullptr) return nullptr;
  return std::make_shared<comm::QueuedGroup>(
      comm::GroupIdentity{.name = std::string(name),
                          .rank = inner->rank(),
                          .world_ranks = {ranks.begin(), ranks.end()}},
      comm::GroupOptions{},
      ranks.size() == 1 ? nullptr : std::make_unique<DelayedTransport>(inner, delay_));
}

}  // namespace dtrain::testing
