#include "dtrain/comm/silent/silent_world.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {
namespace {

class SilentTransport final : public Transport {
 public:
  explicit SilentTransport(std::int64_t rank) : rank_(rank) {}

  std::int64_t run(const Operation& operation, const base::Deadline&) override {
    return std::visit([this](const auto& call) { return execute(call); }, operation);
  }
  void close(const std::string&) noexcept override {}

 private:
  std::int64_t execute(const AllReduce& call) const { return size_in_bytes(call.tensor); }
  std::int64_t execute(const ReduceScatter& call) const {
    const std::int64_t bytes = size_in_bytes(call.output);
    const std::byte* own = bytes_of(call.input) + rank_ * bytes;
    if (own != bytes_of(call.output)) std::copy_n(own, bytes, bytes_of(call.output));
    return size_in_bytes(call.input) - bytes;
  }
  std::int64_t execute(const AllGather& call) const {
    const std::int64_t bytes = size_in_bytes(call.input);
    for (std::int64_t rank = 0; rank < call.output.ranks(); ++rank) {
      const std::span<std::byte> part = call.output.part(rank);
      const auto count = std::min(static_cast<std::size_t>(bytes), part.size());
      if (part.data() != bytes_of(call.input)) {
        std::copy_n(bytes_of(call.input), count, part.data());
      }
    }
    return bytes * (call.output.ranks() - 1);
  }
  std::int64_t execute(const AllToAll& call) const {
    const auto own = call.input.part(rank_);
    std::ranges::copy(own, call.output.part(rank_).data());
    return size_in_bytes(call.input.tensor) - std::ssize(own);
  }
  std::int64_t execute(const Broadcast& call) const {
    return call.root == rank_ ? size_in_bytes(call.tensor) : 0;
  }
  std::int64_t execute(const Send& call) const { return size_in_bytes(call.tensor); }
  std::int64_t execute(const Recv& call) const {
    std::fill_n(bytes_of(call.tensor), size_in_bytes(call.tensor), std::byte{0});
    return 0;
  }
  std::int64_t execute(const Barrier&) const { return 0; }

  std::int64_t rank_;
};

class SilentWorld final : public World {
 public:
  SilentWorld(std::int64_t size, const GroupOptions& options)
      : size_(size), options_(options), control_(split(ranks_below(size), kControlName)) {}

  [[nodiscard]] std::int64_t rank() const override { return 0; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] std::string_view backend() const override { return "silent"; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return at::zeros({bytes}, at::kByte);
  }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                    std::string_view name) override {
    return make_queued_group(ranks, name, rank(), options_, [](const GroupIdentity& identity) {
      return std::make_unique<SilentTransport>(identity.rank);
    });
  }
  [[nodiscard]] ProcessGroup& control() override { return *control_; }

 private:
  std::int64_t size_;
  GroupOptions options_;
  std::shared_ptr<ProcessGroup> control_;
};

}  // namespace

std::shared_ptr<World> make_silent_world(std::int64_t size, const GroupOptions& options) {
  return std::make_shared<SilentWorld>(size, options);
}

}  // namespace dtrain::comm
