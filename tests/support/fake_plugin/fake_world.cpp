#include "support/fake_plugin/fake_world.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/device/graph.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/graph.h"

namespace dtrain::testing {
namespace {

c10::impl::VirtualGuardImpl devices() { return c10::impl::VirtualGuardImpl(fake::kType); }

// A stream of the device, made when it is first used.
class LateStream {
 public:
  explicit LateStream(c10::Device device) : device_(device) {}
  [[nodiscard]] const c10::Stream& get() {
    if (!stream_) stream_ = devices().getNewStream(device_);
    return *stream_;
  }

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

// The streams of a rank's messages, for all its groups.
struct MessageStreams {
  LateStream sends;
  LateStream receives;
};

// The end of a kernel of a group. It keeps the kernel's tensors until somebody has waited, whose
// stream then comes behind the kernel: so their memory can be used again without asking the device.
class OnStream final : public comm::Completion {
 public:
  OnStream(const c10::Stream& stream, std::vector<at::Tensor> used)
      : stream_(stream), used_(std::move(used)), end_(fake::kType) {
    end_.record(stream);
  }
  ~OnStream() override {
    for (const at::Tensor& tensor : used_) at::Tensor(tensor).record_stream(stream_);
  }

  void wait() override {
    end_.block(devices().getStream(end_.device()));
    release();
  }
  void wait_host() override {
    if (!end_.query()) end_.synchronize();
    release();
  }
  [[nodiscard]] bool is_completed() const override { return end_.query(); }

 private:
  void release() {
    const std::lock_guard lock(mutex_);
    used_.clear();
  }

  const c10::Stream stream_;
  std::mutex mutex_;
  std::vector<at::Tensor> used_;
  c10::Event end_;
};

class FakeGroup final : public comm::ProcessGroup {
 public:
  FakeGroup(std::shared_ptr<comm::ProcessGroup> host, c10::Device device,
            std::shared_ptr<MessageStreams> messages)
      : host_(std::move(host)),
        device_(device),
        collectives_(device),
        messages_(std::move(messages)) {}

  std::int64_t rank() const override { return host_->rank(); }
  std::int64_t size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  comm::CallRing& calls() const override { return host_->calls(); }
  void abort(const std::string& reason) noexcept override { host_->abort(reason); }

  // Puts the operation on a stream, after all that the caller's has got; alone on the caller's.
  comm::Work post(comm::Operation operation) override {
    if (std::holds_alternative<comm::Barrier>(operation)) {
      devices().synchronizeDevice(device_.index());
      return host_->post(operation);
    }
    const c10::Stream stream =
        size() == 1 ? devices().getStream(device_) : stream_of(operation).get();
    c10::Event begin(fake::kType);
    begin.record(devices().getStream(device_));
    begin.block(stream);
    const comm::CallRecord record = comm::record_of(operation, comm::ranks_below(size()));
    // The kernel holds no tensors of the device: it gets others for them.
    const auto [read, written] = comm::tensors_of(operation);
    std::vector<at::Tensor> reads;
    std::vector<at::Tensor> writes;
    if (read != nullptr) reads.push_back(std::exchange(*read, {}));
    if (written != nullptr) writes.push_back(std::exchange(*written, {}));
    std::vector<at::Tensor> used = reads;
    used.insert(used.end(), writes.begin(), writes.end());
    fake::launch(stream, record.op.data(), reads, writes,
                 [host = host_, operation](const auto& from, const auto& to) {
                   comm::Operation on_host = operation;
                   const comm::OperationTensors tensors = comm::tensors_of(on_host);
                   if (tensors.read != nullptr) *tensors.read = from[0];
                   if (tensors.written != nullptr) *tensors.written = to[0];
                   host->post(std::move(on_host)).wait_host();
                 });
    return comm::Work(std::make_shared<OnStream>(stream, std::move(used)));
  }

 private:
  LateStream& stream_of(const comm::Operation& operation) {
    if (std::holds_alternative<comm::Send>(operation)) return messages_->sends;
    if (std::holds_alternative<comm::Recv>(operation)) return messages_->receives;
    return collectives_;
  }

  std::shared_ptr<comm::ProcessGroup> host_;
  c10::Device device_;
  LateStream collectives_;
  std::shared_ptr<MessageStreams> messages_;
};

class FakeWorld final : public comm::World {
 public:
  FakeWorld(std::shared_ptr<comm::World> host, c10::Device device)
      : host_(std::move(host)),
        device_(device),
        messages_(std::make_shared<MessageStreams>(LateStream(device), LateStream(device))) {}

  std::int64_t rank() const override { return host_->rank(); }
  std::int64_t size() const override { return host_->size(); }
  c10::Device device() const override { return device_; }
  std::string_view backend() const override { return host_->backend(); }
  at::Tensor allocate(std::int64_t bytes) override {
    return at::zeros({bytes}, options(at::kByte));
  }
  std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                            std::string_view name) override {
    auto host = host_->split(ranks, name);
    if (host == nullptr) return nullptr;
    return std::make_shared<FakeGroup>(std::move(host), device_, messages_);
  }
  void close_rendezvous() override { host_->close_rendezvous(); }
  comm::ProcessGroup& control() override { return host_->control(); }

 private:
  std::shared_ptr<comm::World> host_;
  c10::Device device_;
  std::shared_ptr<MessageStreams> messages_;
};

class FakeGraph final : public device::Graph {
 public:
  explicit FakeGraph(std::unique_ptr<fake::Graph> graph) : graph_(std::move(graph)) {}
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<fake::Graph> graph_;
};

class FakeRecorder final : public device::GraphRecorder {
 public:
  explicit FakeRecorder(c10::Device device)
      : device_(device), pool_(std::make_shared<fake::GraphPool>(device.index())) {}
  std::unique_ptr<device::Graph> record(const std::function<void()>& work) override {
    return std::make_unique<FakeGraph>(fake::capture(device_.index(), work, pool_));
  }

 private:
  c10::Device device_;
  std::shared_ptr<fake::GraphPool> pool_;
};

}  // namespace

std::shared_ptr<comm::World> make_fake_world(std::shared_ptr<comm::World> host,
                                             c10::Device device) {
  device::register_recorder(fake::kType,
                            [](c10::Device own) -> std::unique_ptr<device::GraphRecorder> {
                              return std::make_unique<FakeRecorder>(own);
                            });
  return std::make_shared<FakeWorld>(std::move(host), device);
}

}  // namespace dtrain::testing
