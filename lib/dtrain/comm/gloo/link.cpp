#include "dtrain/comm/gloo/link.h"

#include <ATen/ops/from_blob.h>

#include <set>

namespace dtrain::comm {

namespace {

at::Tensor view_of(const std::byte* data, std::int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, at::kByte);
}

}  // namespace

Link::Link(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
    : group_(std::move(group)),
      notes_(static_cast<std::size_t>(size()), -1),
      note_recvs_(static_cast<std::size_t>(size())) {
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    note_recvs_[index] =
        recv(reinterpret_cast<std::byte*>(&notes_[index]), sizeof(std::int64_t), peer, Tag::note);
  }
}

Message Link::send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  try {
    const std::lock_guard lock(post_mutex_);
    return {group_->send(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

Message Link::recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  try {
    const std::lock_guard lock(post_mutex_);
    return {group_->recv(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

void Link::wait(const Message& message, const Deadline& deadline) {
  try {
    message.work->wait(deadline.remaining());
  } catch (const std::exception&) {
    throw failure(message.peer);
  }
}

void Link::wait(const std::vector<Message>& messages, const Deadline& deadline) {
  for (const Message& message : messages) wait(message, deadline);
}

void Link::all_reduce(const at::Tensor& tensor, ReduceOp op, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  options.timeout = deadline.remaining();
  try {
    c10::intrusive_ptr<c10d::Work> work;
    {
      const std::lock_guard lock(post_mutex_);
      work = group_->allreduce(tensors, options);
    }
    work->wait();  // ends by options.timeout, or when close() cuts the connections
  } catch (const std::exception&) {
    throw failure(-1);
  }
}

TransportFailure Link::failure(std::int64_t peer) {
  using Cause = TransportFailure::Cause;
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return {Cause::closed, {}, reason_};
  }
  std::string text;
  try {
    throw;
  } catch (const std::exception& caught) {
    text = caught.what();
  }
  if (text.find("Timed out") == std::string::npos) return failure_of_connections(peer);
  std::vector<std::int64_t> late;
  if (peer >= 0) late.push_back(peer);
  return {Cause::no_answer, late};
}

TransportFailure Link::failure_of_connections(std::int64_t peer) {
  std::vector<std::int64_t> gone = gone_peers();
  if (gone.empty() && peer >= 0) gone.push_back(peer);
  std::set<std::int64_t> culprits;
  for (const auto messenger : gone) {
    const auto note = note_from(messenger).value_or(-1);
    culprits.insert(note >= 0 && note != rank() ? note : messenger);
  }
  const std::lock_guard lock(close_mutex_);
  if (culprit_ < 0 && !culprits.empty()) culprit_ = *culprits.begin();
  return {TransportFailure::Cause::gone, {culprits.begin(), culprits.end()}};
}

std::optional<std::int64_t> Link::note_from(std::int64_t peer) {
  const auto index = static_cast<std::size_t>(peer);
  const std::lock_guard lock(close_mutex_);
  if (note_recvs_[index].work) {
    try {
      note_recvs_[index].work->wait(std::chrono::milliseconds(1));  // the connection is closed
      note_recvs_[index].work.reset();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return notes_[index];
}

std::vector<std::int64_t> Link::gone_peers() {
  std::byte nothing{};
  std::vector<Message> probes;
  std::vector<std::int64_t> gone;
  const std::lock_guard lock(post_mutex_);
  for (int peer = 0; peer < group_->getSize(); ++peer) {
    if (peer == group_->getRank()) continue;
    std::vector<at::Tensor> tensors{view_of(&nothing, 1)};
    try {
      probes.push_back({group_->recv(tensors, peer, static_cast<int>(Tag::probe)), peer});
    } catch (const std::exception&) {
      gone.push_back(peer);
    }
  }
  return gone;
}

void Link::close(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = reason;
  }
  send_notes();
  cut_connections();
}

void Link::send_notes() noexcept {
  std::vector<Message> notes;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      notes.push_back(
          send(reinterpret_cast<const std::byte*>(&culprit_), sizeof culprit_, peer, Tag::note));
    } catch (const std::exception&) {
      // Gone: it needs no note.
    }
  }
}

void Link::cut_connections() noexcept {
  // gloo has no call to cut its connections, but a wait that times out does just that, and lets
  // everyone who waits here or on the other side know. Nobody ever sends this message.
  std::byte nothing{};
  for (int peer = 0; peer < group_->getSize(); ++peer) {
    if (peer == group_->getRank()) continue;
    std::vector<at::Tensor> tensors{view_of(&nothing, 1)};
    try {
      c10::intrusive_ptr<c10d::Work> probe;
      {
        const std::lock_guard lock(post_mutex_);
        probe = group_->recv(tensors, peer, static_cast<int>(Tag::probe));
      }
      probe->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Either this peer's connection was closed before, or all are now; another round is harmless.
    }
  }
}

}  // namespace dtrain::comm
