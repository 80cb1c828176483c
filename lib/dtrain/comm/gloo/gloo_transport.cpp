#include "dtrain/comm/gloo/gloo_transport.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "dtrain/comm/slices.h"

namespace dtrain::comm {

std::int64_t GlooTransport::run(const Operation& operation, const base::Deadline& deadline) {
  return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
}

std::int64_t GlooTransport::execute(const AllReduce& call, const base::Deadline& deadline) {
  const auto& [tensor, op] = call;
  if (tensor.numel() == 0) return 0;
  const std::int64_t size = link_->size();
  // Gloo's own maxima lose what is no number.
  if (reduction_ == Reduction::fast && op == ReduceOp::sum) {
    link_->all_reduce(tensor, deadline);
    return 2 * (size - 1) * size_in_bytes(tensor) / size;  // of gloo's ring
  }
  if (reducer_.is_small(size_in_bytes(tensor))) {
    return reducer_.run_small(bytes_of(tensor), tensor.numel(), tensor.scalar_type(), op, deadline);
  }
  SlicedReduction reduction{.input = bytes_of(tensor),
                            .output = nullptr,
                            .dtype = tensor.scalar_type(),
                            .op = op,
                            .begins = {},
                            .results = bytes_of(tensor)};
  for (std::int64_t slice = 0; slice <= size; ++slice) {
    reduction.begins.push_back(slice_begin(tensor.numel(), size, slice));
  }
  reduction.output = bytes_of(tensor) + reduction.begins[static_cast<std::size_t>(link_->rank())] *
                                            static_cast<std::int64_t>(tensor.element_size());
  return reducer_.run(reduction, deadline);
}

std::int64_t GlooTransport::execute(const ReduceScatter& call, const base::Deadline& deadline) {
  SlicedReduction reduction{.input = bytes_of(call.input),
                            .output = bytes_of(call.output),
                            .dtype = call.input.scalar_type(),
                            .op = ReduceOp::sum,
                            .begins = {},
                            .results = nullptr};
  for (std::int64_t slice = 0; slice <= link_->size(); ++slice) {
    reduction.begins.push_back(slice * call.output.numel());
  }
  return reducer_.run(reduction, deadline);
}

template <typename Sent, typename Received>
std::int64_t GlooTransport::exchange(Sent sent, Received received, const base::Deadline& deadline) {
  const std::int64_t size = link_->size();
  std::vector<Message> messages;  // receives first: what arrives has a place to go
  for (std::int64_t peer = 0; peer < size; ++peer) {
    const std::span<std::byte> part = received(peer);
    if (peer == link_->rank() || part.empty()) continue;
    messages.push_back(link_->recv(part.data(), std::ssize(part), peer, Tag::collective));
  }
  std::int64_t bytes_sent = 0;
  for (std::int64_t step = 1; step < size; ++step) {
    const std::int64_t peer = (link_->rank() + step) % size;  // not all to rank 0 first
    const std::span<std::byte> part = sent(peer);
    if (part.empty()) continue;
    messages.push_back(link_->send(part.data(), std::ssize(part), peer, Tag::collective));
    bytes_sent += std::ssize(part);
  }
  link_->wait(messages, deadline);
  return bytes_sent;
}

std::int64_t GlooTransport::execute(const AllGather& call, const base::Deadline& deadline) {
  const std::span<std::byte> own = call.output.part(link_->rank());
  if (own.data() != bytes_of(call.input)) std::copy_n(bytes_of(call.input), own.size(), own.data());
  return exchange([&](std::int64_t) { return own; },
                  [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
}

std::int64_t GlooTransport::execute(const AllToAll& call, const base::Deadline& deadline) {
  std::ranges::copy(call.input.part(link_->rank()), call.output.part(link_->rank()).data());
  return exchange([&](std::int64_t peer) { return call.input.part(peer); },
                  [&](std::int64_t peer) { return call.output.part(peer); }, deadline);
}

std::int64_t GlooTransport::execute(const Broadcast& call, const base::Deadline& deadline) {
  const std::span<std::byte> whole(bytes_of(call.tensor), call.tensor.nbytes());
  const std::span<std::byte> nothing;
  const bool is_root = link_->rank() == call.root;
  return exchange([&](std::int64_t) { return is_root ? whole : nothing; },
                  [&](std::int64_t peer) { return peer == call.root ? whole : nothing; }, deadline);
}

std::int64_t GlooTransport::execute(const Send& call, const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(call.tensor);
  if (bytes == 0) return 0;
  link_->wait(link_->send(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point), deadline);
  return bytes;
}

std::int64_t GlooTransport::execute(const Recv& call, const base::Deadline& deadline) {
  const std::int64_t bytes = size_in_bytes(call.tensor);
  if (bytes == 0) return 0;
  link_->wait(link_->recv(bytes_of(call.tensor), bytes, call.peer, Tag::point_to_point), deadline);
  return 0;
}

std::int64_t GlooTransport::execute(const Barrier&, const base::Deadline& deadline) {
  std::byte token{};
  return reducer_.run_small(&token, 1, at::ScalarType::Byte, ReduceOp::max, deadline);
}

}  // namespace dtrain::comm
