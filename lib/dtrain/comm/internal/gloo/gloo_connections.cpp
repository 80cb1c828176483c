#include "dtrain/comm/internal/gloo/gloo_connections.h"

#include <ATen/ops/from_blob.h>

#include <exception>

namespace dtrain::comm {

namespace {

at::Tensor view_of(const std::byte* data, std::int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, at::kByte);
}

}  // namespace

GlooConnections::~GlooConnections() {
  if (is_leaked_) (void)group_.release();
}

Message GlooConnections::send(const std::byte* data, std::int64_t bytes, std::int64_t peer,
                              Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  const std::lock_guard lock(post_mutex_);
  return {group_->send(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
}

Message GlooConnections::recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  const std::lock_guard lock(post_mutex_);
  return {group_->recv(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
}

std::vector<Message> GlooConnections::recv_from_all(Tag tag, std::vector<std::int64_t>& numbers) {
  std::vector<Message> messages(numbers.size());
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    messages[index] =
        recv(reinterpret_cast<std::byte*>(&numbers[index]), sizeof(std::int64_t), peer, tag);
  }
  return messages;
}

c10::intrusive_ptr<c10d::Work> GlooConnections::all_reduce(const at::Tensor& tensor,
                                                           std::chrono::milliseconds timeout) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.timeout = timeout;
  const std::lock_guard lock(post_mutex_);
  return group_->allreduce(tensors, options);
}

void GlooConnections::close() noexcept {
  // gloo has no call that closes its connections, but a wait that times out closes them and fails
  // all waits on both sides.
  std::int64_t nothing = 0;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      recv(reinterpret_cast<std::byte*>(&nothing), sizeof nothing, peer, Tag::never)
          .work->wait(kGlooMinTimeout);
    } catch (const std::exception&) {
      // Either this peer's connection was closed already, or all are now; continuing is harmless.
    }
  }
}

}  // namespace dtrain::comm
