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

  std::int64_t all_reduce(const at::Tensor& tensor, ReduceOp, const base::Deadline&) override {
    return size_in_bytes(tensor);
  }
  std::int64_t reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                              const base::Deadline&) override {
    const std::byte* own = bytes_of(input) + rank_ * size_in_bytes(output);
    if (own != bytes_of(output)) std::copy_n(own, size_in_bytes(output), bytes_of(output));
    return size_in_bytes(input) - size_in_bytes(output);
  }
  std::int64_t all_gather(const at::Tensor& input, const PartedTensor& output,
                          const base::Deadline&) override {
    for (std::int64_t rank = 0; rank < output.ranks(); ++rank) repeat(input, output.part(rank));
    return size_in_bytes(input) * (output.ranks() - 1);
  }
  std::int64_t all_to_all(const PartedTensor& input, const PartedTensor& output,
                          const base::Deadline&) override {
    const auto own = input.part(rank_);
    std::copy_n(own.data(), own.size(), output.part(rank_).data());
    return size_in_bytes(input.tensor()) - static_cast<std::int64_t>(own.size());
  }
  std::int64_t broadcast(const at::Tensor& tensor, std::int64_t root,
                         const base::Deadline&) override {
    return root == rank_ ? size_in_bytes(tensor) : 0;
  }
  std::int64_t send(const at::Tensor& tensor, std::int64_t, const base::Deadline&) override {
    return size_in_bytes(tensor);
  }
  std::int64_t recv(const at::Tensor& tensor, std::int64_t, const base::Deadline&) override {
    std::fill_n(bytes_of(tensor), size_in_bytes(tensor), std::byte{0});
    return 0;
  }
  std::int64_t barrier(const base::Deadline&) override { return 0; }
  void close(const std::string&) noexcept override {}

 private:
  static void repeat(const at::Tensor& input, std::span<std::byte> part) {
    const auto count = std::min(static_cast<std::size_t>(size_in_bytes(input)), part.size());
    if (part.data() != bytes_of(input)) std::copy_n(bytes_of(input), count, part.data());
  }

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
