#include "colossal/comm/backends/shared_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/comm/backends/reduction.h"
#include "colossal/comm/backends/worker.h"

namespace colossal::comm {
namespace {

constexpr int64_t kAtOnceBytes = 64 << 10;

std::byte* bytes_at(const at::Tensor& x) { return static_cast<std::byte*>(x.data_ptr()); }

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// The part of `count` elements that rank r of n reduces.
struct Part {
  int64_t begin, count;
  static Part of(int64_t count, int r, int n) {
    const int64_t begin = count * r / n;
    return {begin, count * (r + 1) / n - begin};
  }
};

}  // namespace

SharedMemory::SharedMemory(std::shared_ptr<Segment> segment, std::string name, int rank, int size, int ranks_on_host)
    : name_(std::move(name)),
      slots_(std::make_shared<Slots>(std::move(segment), name_, rank, size, ranks_on_host)),
      channels_(std::make_shared<Channels>(slots_, name_)),
      worker_(std::make_unique<Worker>()) {}

// The worker is destroyed first, because it may be in a call that uses the slots.
SharedMemory::~SharedMemory() { worker_.reset(); }

template <class Task>
Work SharedMemory::run(int64_t bytes, Task task) {
  auto guarded = [this, task = std::move(task)] {
    const std::lock_guard lock(running_);
    task();
  };
  if (bytes > kInlineBytes || !worker_->idle()) return worker_->submit(std::move(guarded));
  guarded();
  return Work();
}

Signature SharedMemory::next_signature(const Call& call) {
  const at::Tensor* x = call.tensor();
  if (x) require(x->device().is_cpu(), "comm", "group \"", name_, "\": the shared-memory transport needs CPU tensors");
  Signature signature;
  // not compared in an all_to_all, because ranks may send one another different numbers of rows
  signature.bytes = call.collective == Collective::AllToAll ? 0 : static_cast<uint64_t>(bytes_of(call));
  signature.number = ++calls_;
  signature.root = static_cast<int8_t>(call.peer);
  signature.collective = call.collective;
  signature.dtype = x ? static_cast<int8_t>(x->scalar_type()) : int8_t{0};
  signature.reduce = static_cast<uint8_t>(call.op);
  return signature;
}

Work SharedMemory::issue(const Call& call) {
  check(*this, call);
  if (call.reduces()) check_reducible(call.in->scalar_type());
  if (call.collective == Collective::Send) return channels_->send(*call.in, call.peer);
  if (call.collective == Collective::Recv) return channels_->recv(*call.out, call.peer);
  return run(largest_bytes(call),
             [this, kept = KeptCall(call), signature = next_signature(call)] { perform(kept.call(), signature); });
}

void SharedMemory::perform(const Call& call, const Signature& signature) {
  switch (call.collective) {
    case Collective::AllReduce: {
      const int64_t bytes = bytes_of(call);
      const bool at_once = bytes * (size() - 1) <= kAtOnceBytes && bytes <= slots_->capacity();
      return at_once ? reduce_at_once(call, signature) : reduce_in_pieces(call, signature);
    }
    case Collective::AllGather:
      return gather(call, signature);
    case Collective::ReduceScatter:
      return scatter(call, signature);
    case Collective::AllToAll:
      return exchange(call, signature);
    case Collective::Broadcast:
      return spread(call, signature);
    case Collective::Reduce:
      return collect(call, signature);
    default:
      return slots_->meet(signature);
  }
}

void SharedMemory::abort(const std::string& reason) noexcept {
  slots_->abort(reason);
  channels_->wake();
}

void SharedMemory::reduce_at_once(const Call& call, const Signature& signature) {
  const at::Tensor& x = *call.out;
  copy_bytes(slots_->input(rank()), bytes_at(x), bytes_of(x));
  slots_->meet(signature);
  const void* in[kMaxSharedRanks];
  for (int r = 0; r < size(); ++r) in[r] = slots_->shown(r);
  reduce_arrays(x.data_ptr(), in, size(), x.numel(), x.scalar_type(), call.op);
}

void SharedMemory::reduce_in_pieces(const Call& call, const Signature& signature) {
  const at::Tensor& x = *call.out;
  const int n = size(), own = rank();
  const auto width = static_cast<int64_t>(x.element_size());
  const int64_t piece = slots_->capacity() / width;
  const int64_t pieces = (x.numel() + piece - 1) / piece;
  const auto length = [&](int64_t k) { return std::min(piece, x.numel() - k * piece); };
  const auto address = [&](int64_t k) { return bytes_at(x) + k * piece * width; };
  for (int64_t k = 0; k <= pieces; ++k) {
    for (int r = 0; r < n && k < pieces; ++r) {
      const Part part = Part::of(length(k), r, n);  // peers do not need the part that this rank reduces
      if (r != own)
        copy_bytes(slots_->input(own) + part.begin * width, address(k) + part.begin * width, part.count * width);
    }
    slots_->meet(signature);
    if (k < pieces) {
      const Part part = Part::of(length(k), own, n);
      const void* in[kMaxSharedRanks];
      for (int r = 0; r < n; ++r) in[r] = (r == own ? address(k) : slots_->shown(r)) + part.begin * width;
      reduce_arrays(slots_->result(own), in, n, part.count, x.scalar_type(), call.op);
      copy_bytes(address(k) + part.begin * width, slots_->result(own), part.count * width);
    }
    for (int i = 1; i < n && k > 0; ++i) {
      const int peer = (own + i) % n;
      const Part part = Part::of(length(k - 1), peer, n);
      copy_bytes(address(k - 1) + part.begin * width, slots_->last_result(peer), part.count * width);
    }
  }
}

void SharedMemory::gather(const Call& call, const Signature& signature) {
  std::byte *out = bytes_at(*call.out), *in = bytes_at(*call.in);
  const int64_t bytes = bytes_of(*call.in);
  int64_t offset = 0;
  do {  // at least one meeting, so that a mismatch with an empty tensor is detected
    const int64_t count = std::min(slots_->capacity(), bytes - offset);
    copy_bytes(slots_->input(rank()), in + offset, count);
    slots_->meet(signature);
    for (int i = 0; i < size(); ++i) {
      const int peer = (rank() + i) % size();
      std::byte* to = out + peer * bytes + offset;
      const std::byte* from = peer == rank() ? in + offset : slots_->shown(peer);
      if (to != from) copy_bytes(to, from, count);
    }
    offset += count;
  } while (offset < bytes);
}

void SharedMemory::scatter(const Call& call, const Signature& signature) {
  const at::Tensor &out = *call.out, &in = *call.in;
  const int n = size(), own = rank();
  const auto width = static_cast<int64_t>(out.element_size());
  const int64_t total = out.numel(), piece = slots_->capacity() / width / n;
  int64_t offset = 0;
  do {
    const int64_t count = std::min(piece, total - offset);
    const auto source = [&](int r) { return bytes_at(in) + (r * total + offset) * width; };
    for (int r = 0; r < n; ++r) {
      if (r != own) copy_bytes(slots_->input(own) + r * piece * width, source(r), count * width);
    }
    slots_->meet(signature);
    const void* parts[kMaxSharedRanks];
    for (int r = 0; r < n; ++r) parts[r] = r == own ? source(own) : slots_->shown(r) + own * piece * width;
    reduce_arrays(bytes_at(out) + offset * width, parts, n, count, out.scalar_type(), call.op);
    offset += count;
  } while (offset < total);
}

void SharedMemory::exchange(const Call& call, const Signature& signature) {
  std::byte *out = bytes_at(*call.out), *in = bytes_at(*call.in);
  const auto out_borders = row_borders(*call.out, call.out_rows, size());
  const auto in_borders = row_borders(*call.in, call.in_rows, size());
  const int n = size(), own = rank();
  // The ranks first exchange the byte counts of all pairs: [from][to] bytes. The counts also determine the number of
  // pieces.
  std::vector<int64_t> bytes(static_cast<size_t>(n) * n);
  for (int r = 0; r < n; ++r) bytes[own * n + r] = in_borders[r + 1] - in_borders[r];
  copy_bytes(slots_->input(own), reinterpret_cast<std::byte*>(&bytes[own * n]), n * 8);
  slots_->meet(signature);
  for (int r = 0; r < n; ++r) copy_bytes(reinterpret_cast<std::byte*>(&bytes[r * n]), slots_->shown(r), n * 8);
  for (int to = 0; to < n; ++to) {
    const int64_t wanted = out_borders[to + 1] - out_borders[to];
    if (bytes[to * n + own] == wanted) continue;
    slots_->abort(concat("group \"", name_, "\": in all_to_all (call ", signature.number, ") rank ", to, " sends ",
                         bytes[to * n + own], " bytes to rank ", own, ", which expects ", wanted,
                         "; out_rows of one must be in_rows of the other"));
  }
  const int64_t piece = slots_->capacity() / n;
  const int64_t longest = *std::max_element(bytes.begin(), bytes.end());
  const int64_t kept = std::min(bytes[own * n + own], out_borders[own + 1] - out_borders[own]);
  copy_bytes(out + out_borders[own], in + in_borders[own], kept);
  for (int64_t offset = 0; offset < longest || offset == 0; offset += piece) {
    const auto count = [&](int from, int to) { return std::clamp<int64_t>(bytes[from * n + to] - offset, 0, piece); };
    for (int r = 0; r < n; ++r) {
      if (r != own) copy_bytes(slots_->input(own) + r * piece, in + in_borders[r] + offset, count(own, r));
    }
    slots_->meet(signature);  // throws here if any rank found a mismatch
    for (int r = 0; r < n; ++r) {
      if (r != own) copy_bytes(out + out_borders[r] + offset, slots_->shown(r) + own * piece, count(r, own));
    }
  }
}

void SharedMemory::spread(const Call& call, const Signature& signature) {
  std::byte* x = bytes_at(*call.out);
  const int64_t bytes = bytes_of(call);
  const int root = call.peer;
  int64_t offset = 0;
  do {
    const int64_t count = std::min(slots_->capacity(), bytes - offset);
    if (rank() == root) copy_bytes(slots_->input(root), x + offset, count);
    slots_->meet(signature);
    if (rank() != root) copy_bytes(x + offset, slots_->shown(root), count);
    offset += count;
  } while (offset < bytes);
}

void SharedMemory::collect(const Call& call, const Signature& signature) {
  const at::Tensor& x = *call.out;
  const int root = call.peer;
  const auto width = static_cast<int64_t>(x.element_size());
  int64_t offset = 0;
  do {
    const int64_t count = std::min(slots_->capacity() / width, x.numel() - offset);
    std::byte* own = bytes_at(x) + offset * width;
    if (rank() != root) copy_bytes(slots_->input(rank()), own, count * width);
    slots_->meet(signature);
    if (rank() == root) {
      const void* parts[kMaxSharedRanks];
      for (int r = 0; r < size(); ++r) parts[r] = r == root ? own : slots_->shown(r);
      reduce_arrays(own, parts, size(), count, x.scalar_type(), call.op);
    }
    offset += count;
  } while (offset < x.numel());
}

}  // namespace colossal::comm
