#include "mpi/mpi_transport.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "dtrain/comm/reduce.h"

namespace dtrain::mpi {
namespace {

using comm::bytes_of;
using comm::size_in_bytes;

enum class Tag : int { collective, point_to_point };

constexpr std::int64_t kLargestMessage = 1 << 30;  // MPI counts with int

/// The MPI type of a dtype whose sums MPI supports.
std::optional<MPI_Datatype> added_by_mpi(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return MPI_FLOAT;
    case at::ScalarType::Double:
      return MPI_DOUBLE;
    case at::ScalarType::Long:
      return MPI_INT64_T;
    case at::ScalarType::Byte:
      return MPI_UINT8_T;
    default:
      return std::nullopt;
  }
}

// Starts one request for each chunk of `count` that fits MPI's int counts.
template <typename Post>
void post_chunks(std::int64_t count, std::vector<MPI_Request>& requests, const Post& post) {
  for (std::int64_t begin = 0; begin < count; begin += kLargestMessage) {
    requests.push_back(MPI_REQUEST_NULL);
    check(
        post(begin, static_cast<int>(std::min(kLargestMessage, count - begin)), &requests.back()));
  }
}

void post_send(std::span<std::byte> part, int peer, Tag tag, MPI_Comm communicator,
               Requests& requests) {
  post_chunks(std::ssize(part), requests, [&](std::int64_t begin, int count, MPI_Request* request) {
    return MPI_Isend(part.data() + begin, count, MPI_BYTE, peer, static_cast<int>(tag),
                     communicator, request);
  });
}

void post_recv(std::span<std::byte> part, int peer, Tag tag, MPI_Comm communicator,
               Requests& requests) {
  post_chunks(std::ssize(part), requests, [&](std::int64_t begin, int count, MPI_Request* request) {
    return MPI_Irecv(part.data() + begin, count, MPI_BYTE, peer, static_cast<int>(tag),
                     communicator, request);
  });
}

std::span<std::byte> whole(const at::Tensor& tensor) { return {bytes_of(tensor), tensor.nbytes()}; }

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<Engine> engine, MPI_Comm communicator,
                           comm::Reduction reduction)
    : engine_(std::move(engine)), communicator_(communicator), reduction_(reduction) {
  check(MPI_Comm_rank(communicator_, &rank_));
  check(MPI_Comm_size(communicator_, &size_));
}

std::byte* MpiTransport::sent() {
  const std::int64_t bytes = 2 * comm::staging_bytes(size_);
  if (!staging_.defined()) staging_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  return bytes_of(staging_);
}

std::byte* MpiTransport::received() { return sent() + comm::staging_bytes(size_); }

std::int64_t MpiTransport::run(const comm::Operation& operation, const base::Deadline& deadline) {
  return std::visit([&](const auto& call) { return execute(call, deadline); }, operation);
}

template <typename Sent, typename Received>
void MpiTransport::exchange(Sent sent, Received received, const base::Deadline& deadline) {
  engine_->run(
      [sent, received, rank = rank_, size = size_,
       communicator = communicator_](Requests& requests) {
        for (int step = 1; step < size; ++step) {  // not all to rank 0 first
          const int from = (rank + size - step) % size;
          post_recv(received(from), from, Tag::collective, communicator, requests);
        }
        for (int step = 1; step < size; ++step) {
          const int to = (rank + step) % size;
          post_send(sent(to), to, Tag::collective, communicator, requests);
        }
      },
      deadline, closed_);
}

std::int64_t MpiTransport::execute(const comm::AllReduce& call, const base::Deadline& deadline) {
  const auto& [tensor, op] = call;
  if (tensor.numel() == 0) return 0;
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  const auto type = added_by_mpi(tensor.scalar_type());
  if (reduction_ == comm::Reduction::fast && op == comm::ReduceOp::sum && type) {
    engine_->run(
        [own = call.tensor, type = *type, element,
         communicator = communicator_](Requests& requests) {
          post_chunks(own.numel(), requests,
                      [&](std::int64_t begin, int count, MPI_Request* request) {
                        return MPI_Iallreduce(MPI_IN_PLACE, bytes_of(own) + begin * element, count,
                                              type, MPI_SUM, communicator, request);
                      });
        },
        deadline, closed_);
    return 2 * (size_ - 1) * size_in_bytes(tensor) / size_;  // of a ring
  }
  Sum sum{.input = bytes_of(tensor),
          .results = bytes_of(tensor),
          .dtype = tensor.scalar_type(),
          .op = op};
  for (std::int64_t slice = 0; slice <= size_; ++slice) {
    sum.begins.push_back(comm::slice_begin(tensor.numel(), size_, slice));
  }
  sum.output = bytes_of(tensor) + sum.begins[rank_index()] * element;
  return add_in_order(sum, deadline);
}

std::int64_t MpiTransport::execute(const comm::ReduceScatter& call,
                                   const base::Deadline& deadline) {
  Sum sum{.input = bytes_of(call.input),
          .output = bytes_of(call.output),
          .dtype = call.input.scalar_type()};
  for (std::int64_t slice = 0; slice <= size_; ++slice) {
    sum.begins.push_back(slice * call.output.numel());
  }
  return add_in_order(sum, deadline);
}

MpiTransport::Round MpiTransport::round_at(const Sum& sum, std::int64_t offset,
                                           std::int64_t length) const {
  const auto element = static_cast<std::int64_t>(c10::elementSize(sum.dtype));
  Round round;
  int place = 0;
  for (std::size_t slice = 0; slice + 1 < sum.begins.size(); ++slice) {
    const std::int64_t begin = std::min(sum.begins[slice] + offset, sum.begins[slice + 1]);
    const std::int64_t count = std::min(length, sum.begins[slice + 1] - begin);
    round.offsets.push_back(begin * element);
    round.counts.push_back(static_cast<int>(count * element));
    round.places.push_back(place);
    place += round.counts.back();
  }
  return round;
}

std::int64_t MpiTransport::add_in_order(const Sum& sum, const base::Deadline& deadline) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(sum.dtype));
  const std::int64_t length = comm::staged_slice(size_, element);
  std::int64_t longest = 0;
  for (std::size_t slice = 0; slice + 1 < sum.begins.size(); ++slice) {
    longest = std::max(longest, sum.begins[slice + 1] - sum.begins[slice]);
  }
  for (std::int64_t offset = 0; offset < longest; offset += length) {
    const Round round = round_at(sum, offset, length);
    add_round(sum, round, deadline);
    if (sum.results != nullptr) gather_round(sum, round, deadline);
  }
  const std::int64_t own = sum.begins[rank_index() + 1] - sum.begins[rank_index()];
  const std::int64_t others = sum.begins.back() - own;
  return (others + (sum.results != nullptr ? own * (size_ - 1) : 0)) * element;
}

void MpiTransport::add_round(const Sum& sum, const Round& round, const base::Deadline& deadline) {
  for (std::size_t slice = 0; slice < round.counts.size(); ++slice) {
    std::copy_n(sum.input + round.offsets[slice], round.counts[slice],
                sent() + round.places[slice]);
  }
  const int own = round.counts[rank_index()];
  std::vector<int> counts(round.counts.size(), own);
  std::vector<int> places;
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < size_; ++rank) {
    places.push_back(rank * own);
    inputs.push_back(received() + places.back());
  }
  engine_->run(
      [round, counts, places, from = sent(), to = received(), staging = staging_,
       communicator = communicator_](Requests& requests) {
        // MPI reads the count arrays until completion; the lambda keeps them alive.
        check(MPI_Ialltoallv(from, round.counts.data(), round.places.data(), MPI_BYTE, to,
                             counts.data(), places.data(), MPI_BYTE, communicator,
                             &requests.emplace_back()));
      },
      deadline, closed_);
  const auto element = static_cast<std::int64_t>(c10::elementSize(sum.dtype));
  if (own == 0) return;
  std::byte* output =
      sum.output + (round.offsets[rank_index()] - sum.begins[rank_index()] * element);
  comm::reduce_in_tree_order(inputs, output, own / element, sum.dtype, sum.op);
}

void MpiTransport::gather_round(const Sum& sum, const Round& round,
                                const base::Deadline& deadline) {
  const std::size_t own = rank_index();
  std::copy_n(sum.results + round.offsets[own], round.counts[own], sent() + round.places[own]);
  engine_->run(
      [round, to = sent(), staging = staging_, communicator = communicator_](Requests& requests) {
        check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, to, round.counts.data(),
                              round.places.data(), MPI_BYTE, communicator,
                              &requests.emplace_back()));
      },
      deadline, closed_);
  for (std::size_t slice = 0; slice < round.counts.size(); ++slice) {
    std::copy_n(sent() + round.places[slice], round.counts[slice],
                sum.results + round.offsets[slice]);
  }
}

std::int64_t MpiTransport::execute(const comm::AllGather& call, const base::Deadline& deadline) {
  const std::span<std::byte> own = call.output.part(rank_);
  if (own.data() != bytes_of(call.input)) std::copy_n(bytes_of(call.input), own.size(), own.data());
  exchange([own](int) { return own; },
           [output = call.output](int peer) { return output.part(peer); }, deadline);
  return std::ssize(own) * (size_ - 1);
}

std::int64_t MpiTransport::execute(const comm::AllToAll& call, const base::Deadline& deadline) {
  std::ranges::copy(call.input.part(rank_), call.output.part(rank_).data());
  exchange([input = call.input](int peer) { return input.part(peer); },
           [output = call.output](int peer) { return output.part(peer); }, deadline);
  return size_in_bytes(call.input.tensor) - std::ssize(call.input.part(rank_));
}

std::int64_t MpiTransport::execute(const comm::Broadcast& call, const base::Deadline& deadline) {
  engine_->run(
      [call, communicator = communicator_](Requests& requests) {
        post_chunks(size_in_bytes(call.tensor), requests,
                    [&](std::int64_t begin, int count, MPI_Request* request) {
                      return MPI_Ibcast(bytes_of(call.tensor) + begin, count, MPI_BYTE,
                                        static_cast<int>(call.root), communicator, request);
                    });
      },
      deadline, closed_);
  return rank_ == call.root ? size_in_bytes(call.tensor) * (size_ - 1) : 0;
}

std::int64_t MpiTransport::execute(const comm::Send& call, const base::Deadline& deadline) {
  engine_->run(
      [call, communicator = communicator_](Requests& requests) {
        post_send(whole(call.tensor), static_cast<int>(call.peer), Tag::point_to_point,
                  communicator, requests);
      },
      deadline, closed_);
  return size_in_bytes(call.tensor);
}

std::int64_t MpiTransport::execute(const comm::Recv& call, const base::Deadline& deadline) {
  engine_->run(
      [call, communicator = communicator_](Requests& requests) {
        post_recv(whole(call.tensor), static_cast<int>(call.peer), Tag::point_to_point,
                  communicator, requests);
      },
      deadline, closed_);
  return 0;
}

std::int64_t MpiTransport::execute(const comm::Barrier&, const base::Deadline& deadline) {
  engine_->run(
      [communicator = communicator_](Requests& requests) {
        check(MPI_Ibarrier(communicator, &requests.emplace_back()));
      },
      deadline, closed_);
  return 0;
}

void MpiTransport::close(const std::string& /*reason*/) noexcept {
  closed_ = true;
  engine_->wake();
}

}  // namespace dtrain::mpi
