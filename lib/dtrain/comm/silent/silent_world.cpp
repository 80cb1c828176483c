#include "dtrain/comm/silent/silent_world.h"

#include <algorithm>
#include <utility>

#include "dtrain/comm/cpu_world.h"

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

}  // namespace

std::shared_ptr<World> make_silent_world(std::int64_t size, const GroupOptions& options) {
  const auto connect = [](const GroupIdentity& identity) {
    return std::make_unique<SilentTransport>(identity.rank);
  };
  return std::make_shared<CpuWorld>(0, size, options,
                                    CpuBackend{.name = "silent", .connect = connect});
}

}  // namespace dtrain::comm
