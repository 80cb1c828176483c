#include "dtrain/comm/operation.h"

#include "dtrain/base/error.h"
#include "dtrain/base/overloaded.h"
#include "dtrain/comm/reduce.h"

namespace dtrain::comm {

namespace {

/// Checks what each operation requires, besides dense tensors.
struct Requirements {
  const OperationPlace& place;

  void operator()(const Barrier&) const {}
  void operator()(const AllReduce& call) const { check_reducible(call.tensor); }
  void operator()(const ReduceScatter& call) const {
    check_reducible(call.input);
    DTRAIN_CHECK(call.input.numel() == call.output.numel() * place.size &&
                 call.input.scalar_type() == call.output.scalar_type());
  }
  void operator()(const AllGather& call) const {
    DTRAIN_CHECK(call.output.ranks() == place.size &&
                 call.output.count(place.rank) == call.input.numel() &&
                 call.input.scalar_type() == call.output.tensor.scalar_type());
  }
  void operator()(const AllToAll& call) const {
    DTRAIN_CHECK(call.input.ranks() == place.size && call.output.ranks() == place.size &&
                 call.input.count(place.rank) == call.output.count(place.rank) &&
                 call.input.tensor.scalar_type() == call.output.tensor.scalar_type());
  }
  void operator()(const Broadcast& call) const {
    DTRAIN_CHECK(call.root >= 0 && call.root < place.size);
  }
  void operator()(const Send& call) const { check_peer(call.peer); }
  void operator()(const Recv& call) const { check_peer(call.peer); }

  static void check_reducible(const at::Tensor& tensor) {
    DTRAIN_CHECK(is_reducible(tensor.scalar_type()), "cannot reduce {}",
                 c10::toString(tensor.scalar_type()));
  }
  void check_peer(std::int64_t peer) const {
    DTRAIN_CHECK(peer >= 0 && peer < place.size && peer != place.rank,
                 "no peer {} in a group of {}", peer, place.size);
  }
};

}  // namespace

PartedTensor::PartedTensor(at::Tensor whole, std::span<const std::int64_t> counts)
    : tensor(std::move(whole)) {
  begins.reserve(counts.size() + 1);
  for (const std::int64_t count : counts) {
    DTRAIN_CHECK(count >= 0, "a part of {} elements", count);
    begins.push_back(begins.back() + count);
  }
  DTRAIN_CHECK(begins.back() == tensor.numel(), "parts of {} elements in a tensor of {}",
               begins.back(), tensor.numel());
}

OperationTensors tensors_of(Operation& operation) {
  return std::visit(
      base::Overloaded{[](Barrier&) { return OperationTensors(); },
                       [](AllReduce& call) { return OperationTensors{.written = &call.tensor}; },
                       [](ReduceScatter& call) {
                         return OperationTensors{&call.input, &call.output};
                       },
                       [](AllGather& call) {
                         return OperationTensors{&call.input, &call.output.tensor};
                       },
                       [](AllToAll& call) {
                         return OperationTensors{&call.input.tensor, &call.output.tensor};
                       },
                       [](Broadcast& call) { return OperationTensors{.written = &call.tensor}; },
                       [](Send& call) { return OperationTensors{.read = &call.tensor}; },
                       [](Recv& call) { return OperationTensors{.written = &call.tensor}; }},
      operation);
}

void check_operation(Operation& operation, const OperationPlace& place) {
  const OperationTensors tensors = tensors_of(operation);
  for (const at::Tensor* tensor : {tensors.read, tensors.written}) {
    if (tensor == nullptr) continue;
    DTRAIN_CHECK(tensor->defined() && tensor->is_contiguous() && tensor->device() == place.device,
                 "communication needs contiguous tensors on {}", place.device.str());
  }
  std::visit(Requirements{place}, operation);
}

CallRecord record_of(const Operation& operation, std::span<const std::int64_t> world_ranks) {
  CallRecord record;
  const auto note = [&](std::string_view op, const at::Tensor& tensor, std::int64_t peer = -1) {
    record.op = op;
    record.dtype = tensor.scalar_type();
    record.count = tensor.numel();
    if (peer >= 0) record.peer = world_ranks[static_cast<std::size_t>(peer)];
  };
  std::visit(base::Overloaded{
                 [&](const Barrier&) { record.op = "barrier"; },
                 [&](const AllReduce& call) {
                   note(call.op == ReduceOp::sum ? "all_reduce" : "all_reduce max", call.tensor);
                 },
                 [&](const ReduceScatter& call) { note("reduce_scatter", call.input); },
                 [&](const AllGather& call) {
                   note(call.takes_counts ? "all_gather_v" : "all_gather", call.input);
                 },
                 [&](const AllToAll& call) { note("all_to_all", call.input.tensor); },
                 [&](const Broadcast& call) { note("broadcast", call.tensor, call.root); },
                 [&](const Send& call) { note("send", call.tensor, call.peer); },
                 [&](const Recv& call) { note("recv", call.tensor, call.peer); }},
             operation);
  return record;
}

void run_single_rank(Operation& operation) {
  const auto [read, written] = tensors_of(operation);
  if (read != nullptr && written != nullptr) written->copy_(read->view_as(*written));
}

}  // namespace dtrain::comm
