#include "colossal/comm/backends/channels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

constexpr size_t kControlBytes = 256;

// A ring buffer with one writer and one reader. The positions only grow; byte number p is stored at p % capacity.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) Flag bell;  // used only in the pair (r, r): rung when something changed for rank r
  std::byte* data() { return reinterpret_cast<std::byte*>(this) + kControlBytes; }
};
static_assert(sizeof(Ring) <= kControlBytes);

Ring& ring_of(const Slots& slots, int from, int to) {
  const size_t index = static_cast<size_t>(from) * slots.size() + to;
  return *reinterpret_cast<Ring*>(slots.channels() + index * Slots::channel_bytes(slots.size()));
}

struct Envelope {
  uint64_t bytes;
  int64_t dtype;
};

}  // namespace

class Channels::Transfer {
 public:
  Transfer(Slots& slots, const std::string& group, at::Tensor x, int peer, bool sends)
      : peer(peer),
        sends(sends),
        slots_(slots),
        group_(group),
        x_(std::move(x)),
        envelope_{static_cast<uint64_t>(bytes_of(x_)), static_cast<int64_t>(x_.scalar_type())},
        ring_(sends ? ring_of(slots, slots.rank(), peer) : ring_of(slots, peer, slots.rank())),
        capacity_(Slots::channel_bytes(slots.size()) - kControlBytes) {}

  /// Copies as many bytes as possible without waiting.
  void advance() {
    const bool moved = sends ? push() : pull();
    if (moved) ring_of(slots_, peer, peer).bell.ring();
    if (position_ == sizeof(Envelope) + envelope_.bytes) finished = true;
  }

  void fail(std::exception_ptr cause) {
    failure = cause;
    finished = true;
  }

  const int peer;
  const bool sends;
  bool finished = false;
  std::exception_ptr failure;

 private:
  // Returns the next contiguous bytes of the message, envelope first.
  std::pair<std::byte*, size_t> rest() {
    if (position_ < sizeof(Envelope)) {
      auto* bytes = reinterpret_cast<std::byte*>(sends ? &envelope_ : &arrived_);
      return {bytes + position_, sizeof(Envelope) - position_};
    }
    const size_t done = position_ - sizeof(Envelope);
    return {static_cast<std::byte*>(x_.data_ptr()) + done, envelope_.bytes - done};
  }

  bool push() {
    const uint64_t read = ring_.read.load(std::memory_order_acquire);
    const uint64_t before = ring_.written.load(std::memory_order_relaxed);
    uint64_t written = before;
    while (written - read < capacity_) {
      const auto [bytes, left] = rest();
      const size_t at = written % capacity_;
      const size_t count = std::min({left, capacity_ - at, static_cast<size_t>(capacity_ - (written - read))});
      if (count == 0) break;
      std::memcpy(ring_.data() + at, bytes, count);
      written += count;
      position_ += count;
    }
    ring_.written.store(written, std::memory_order_release);
    return written != before;
  }

  bool pull() {
    const uint64_t written = ring_.written.load(std::memory_order_acquire);
    const uint64_t before = ring_.read.load(std::memory_order_relaxed);
    uint64_t read = before;
    while (read < written) {
      const auto [bytes, left] = rest();
      const size_t at = read % capacity_;
      const size_t count = std::min({left, capacity_ - at, static_cast<size_t>(written - read)});
      if (count == 0) break;
      std::memcpy(bytes, ring_.data() + at, count);
      read += count;
      position_ += count;
      if (position_ == sizeof(Envelope)) check_envelope();
    }
    ring_.read.store(read, std::memory_order_release);
    return read != before;
  }

  void check_envelope() {
    if (arrived_.bytes == envelope_.bytes && arrived_.dtype == envelope_.dtype) return;
    const auto text = [](const Envelope& e) {
      return concat(e.bytes, " bytes of ", c10::toString(static_cast<at::ScalarType>(e.dtype)));
    };
    slots_.abort(concat("group \"", group_, "\": rank ", peer, " sent ", text(arrived_), " while rank ", slots_.rank(),
                        " receives ", text(envelope_), "; sends and receives of a pair must match in order"));
    slots_.check(slots_.rank());
  }

  Slots& slots_;
  const std::string& group_;
  at::Tensor x_;
  Envelope envelope_, arrived_{};
  Ring& ring_;
  const uint64_t capacity_;
  uint64_t position_ = 0;
};

class Channels::Pending : public Work::State {
 public:
  Pending(std::shared_ptr<Channels> channels, std::shared_ptr<Transfer> transfer)
      : channels_(std::move(channels)), transfer_(std::move(transfer)) {}
  void wait() override { channels_->wait(*transfer_); }
  bool done() override {
    const std::lock_guard lock(channels_->mutex_);
    return transfer_->finished;
  }

 private:
  std::shared_ptr<Channels> channels_;
  std::shared_ptr<Transfer> transfer_;
};

Channels::Channels(std::shared_ptr<Slots> slots, std::string group)
    : slots_(std::move(slots)), group_(std::move(group)) {}

Channels::~Channels() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  wake();
  if (thread_.joinable()) thread_.join();
}

Work Channels::send(const at::Tensor& x, int to) {
  return start(std::make_shared<Transfer>(*slots_, group_, x, to, true));
}

Work Channels::recv(const at::Tensor& x, int from) {
  return start(std::make_shared<Transfer>(*slots_, group_, x, from, false));
}

Work Channels::start(std::shared_ptr<Transfer> transfer) {
  const std::lock_guard lock(mutex_);
  slots_->check(slots_->rank());
  pending_.push_back(transfer);
  progress();
  if (transfer->failure) std::rethrow_exception(transfer->failure);
  if (transfer->finished) return Work();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return Work(std::make_shared<Pending>(shared_from_this(), std::move(transfer)));
}

void Channels::progress() {
  std::vector<char> blocked(2 * slots_->size(), 0);  // true if an earlier transfer of this pair and direction is not
                                                     // finished
  for (const auto& transfer : pending_) {
    char& is_blocked = blocked[2 * transfer->peer + transfer->sends];
    if (is_blocked) continue;
    try {
      transfer->advance();
    } catch (...) {
      transfer->fail(std::current_exception());
    }
    is_blocked = !transfer->finished;
  }
  std::erase_if(pending_, [](const auto& transfer) { return transfer->finished; });
}

void Channels::fail_orphans() {
  std::vector<char> gone(slots_->size(), 0);
  for (int r = 0; r < slots_->size(); ++r) gone[r] = r != slots_->rank() && (slots_->left(r) || slots_->died(r));
  progress();  // after the check above, because a peer may write its last bytes and leave
  for (const auto& transfer : pending_) {
    try {
      slots_->check(gone[transfer->peer] ? transfer->peer : slots_->rank());
    } catch (...) {
      transfer->fail(std::current_exception());
    }
  }
  std::erase_if(pending_, [](const auto& transfer) { return transfer->finished; });
}

void Channels::wait(Transfer& transfer) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  lock.unlock();
  const auto ready = [&] {
    const std::lock_guard guard(mutex_);
    progress();
    return transfer.finished;
  };
  const auto check = [&] {
    const std::lock_guard guard(mutex_);
    fail_orphans();
    if (transfer.finished) wake();
  };
  wait_for(ring_of(*slots_, slots_->rank(), slots_->rank()).bell, slots_->patience(), ready, check);
  lock.lock();
  --waiters_;
  lock.unlock();
  changed_.notify_all();
  if (transfer.failure) std::rethrow_exception(transfer.failure);
}

void Channels::run() {
  const int rank = slots_->rank();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || (waiters_ == 0 && !pending_.empty()); });
    lock.unlock();
    const auto ready = [this] {
      const std::lock_guard guard(mutex_);
      if (!stopping_) progress();
      return stopping_ || waiters_ > 0 || pending_.empty();
    };
    const auto check = [this] {
      const std::lock_guard guard(mutex_);
      fail_orphans();
    };
    wait_for(ring_of(*slots_, rank, rank).bell, Patience{0}, ready, check);
    lock.lock();
  }
}

void Channels::wake() noexcept { ring_of(*slots_, slots_->rank(), slots_->rank()).bell.ring(); }

}  // namespace colossal::comm
