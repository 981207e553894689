#include "colossal/comm/backends/slots.h"

#include <ATen/ATen.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <thread>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

// Not FUTEX_PRIVATE: the word may be shared between processes.
void futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, limit, nullptr, 0);
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

constexpr size_t kPage = 4096;
constexpr size_t kReasonBytes = 1500;
enum : uint32_t { kRunning, kWritingReason, kAborted };

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

// Half a megabyte keeps the data that two ranks exchange in the second-level and third-level caches. All of it is
// reserved at once, so a total of a few megabytes keeps many groups cheap.
int64_t input_capacity(int size) {
  return std::clamp<int64_t>((int64_t{4} << 20) / size / kPage * kPage, 64 << 10, 512 << 10);
}

size_t half_bytes(int size) {
  const auto capacity = static_cast<size_t>(input_capacity(size));
  return round_up(capacity + capacity / size + 64, kPage);
}

uint64_t process_namespace() {  // process ids are comparable only within one namespace
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool is_zombie(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'Z';
}

}  // namespace

Patience Patience::for_ranks(int ranks_on_host) {
  // The affinity mask of a bound rank is its share; unbound ranks see the whole machine. In both cases a rank has its
  // own core.
  const bool bound = available_cores() < static_cast<int>(std::thread::hardware_concurrency());
  const bool core_each = bound || available_cores() >= ranks_on_host;
  return {core_each ? 4000 : 20};
}

void Flag::store(uint32_t value) {
  // Both sides are sequentially consistent: either the sleeper sees the value or the writer sees the sleeper.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void Flag::ring() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void Flag::wake() { futex(&value_, FUTEX_WAKE, INT_MAX, nullptr); }

void Flag::sleep(uint32_t seen, std::chrono::milliseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec span{seconds.count(), std::chrono::nanoseconds(limit - seconds).count()};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) == seen) futex(&value_, FUTEX_WAIT, seen, &span);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

struct alignas(64) Slots::Header {
  Flag met;  // the last step this rank has published
  Signature calls[2];
  alignas(64) std::atomic<uint32_t> left;
  int process;
  uint64_t process_namespace;
  std::atomic<uint32_t> joined;
};

struct alignas(64) Slots::End {
  std::atomic<uint32_t> state;
  char reason[kReasonBytes];
};

std::string describe(const Signature& call) {
  std::string text = to_string(call.collective);
  if (call.collective == Collective::Barrier) return text;
  const bool reduces = call.collective == Collective::AllReduce || call.collective == Collective::ReduceScatter ||
                       call.collective == Collective::Reduce;
  if (reduces) text += concat("(", to_string(static_cast<Reduce>(call.reduce)), ")");
  if (call.collective != Collective::AllToAll) text += concat(" of ", call.bytes, " bytes");
  text += concat(" of ", c10::toString(static_cast<at::ScalarType>(call.dtype)));
  const bool rooted = call.collective == Collective::Broadcast || call.collective == Collective::Reduce;
  if (rooted) text += concat(" with root ", static_cast<int>(call.root));
  return text;
}

size_t Slots::channel_bytes(int size) {
  size_t bytes = 256 << 10;
  while (bytes > kPage && bytes * size * size > (size_t{4} << 20)) bytes /= 2;
  return bytes + 256;
}

size_t Slots::segment_bytes(int size) {
  const size_t front = round_up(sizeof(End) + size * sizeof(Header), kPage);
  return round_up(front + size * 2 * half_bytes(size) + size * size * channel_bytes(size), kPage);
}

Slots::Slots(std::shared_ptr<Segment> segment, std::string group, int rank, int size, int ranks_on_host)
    : segment_(std::move(segment)),
      group_(std::move(group)),
      rank_(rank),
      size_(size),
      patience_(Patience::for_ranks(ranks_on_host)),
      capacity_(input_capacity(size)) {
  require(size <= kMaxSharedRanks, "comm", "group \"", group_, "\": shared memory holds up to ", kMaxSharedRanks,
          " ranks: got ", size, "; use backend = \"gloo\"");
  Header& own = header(rank);
  own.process = getpid();
  own.process_namespace = comm::process_namespace();
  own.joined.store(1, std::memory_order_release);
}

Slots::~Slots() {
  header(rank_).left.store(1, std::memory_order_seq_cst);
  header(rank_).met.wake();
}

Slots::End& Slots::end() const { return *reinterpret_cast<End*>(segment_->data()); }

Slots::Header& Slots::header(int rank) const { return reinterpret_cast<Header*>(segment_->data() + sizeof(End))[rank]; }

std::byte* Slots::half(int rank, uint32_t step) const {
  const size_t front = round_up(sizeof(End) + size_ * sizeof(Header), kPage);
  return segment_->data() + front + (2 * static_cast<size_t>(rank) + step % 2) * half_bytes(size_);
}

std::byte* Slots::channels() const { return half(size_, 0); }

void Slots::meet(const Signature& call) {
  const uint32_t step = ++step_;
  if (end().state.load(std::memory_order_relaxed) != kRunning) throw_reason();
  Header& own = header(rank_);
  own.calls[step % 2] = call;
  own.met.store(step);
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    Header& other = header(peer);
    const auto reached = [&] { return static_cast<int32_t>(other.met.load() - step) >= 0; };
    wait_for(other.met, patience_, reached, [&] {
      const bool gone = left(peer) || died(peer);  // first, because a peer may publish its last
                                                   // step and leave
      if (!reached()) check(gone ? peer : rank_);
    });
  }
  compare();
}

void Slots::compare() {
  const Signature& first = header(0).calls[step_ % 2];
  for (int peer = 1; peer < size_; ++peer) {  // always compares with rank 0, so the message is the same whichever rank
                                              // sees it first
    const Signature& other = header(peer).calls[step_ % 2];
    if (other == first) continue;
    abort(concat("group \"", group_, "\": rank ", peer, " called ", describe(other), " (call ", other.number,
                 ") while rank 0 called ", describe(first), " (call ", first.number,
                 "); every rank must make the same calls in the same order"));
    throw_reason();
  }
}

void Slots::abort(const std::string& reason) noexcept {
  uint32_t expected = kRunning;
  if (end().state.compare_exchange_strong(expected, kWritingReason)) {
    const size_t length = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(end().reason, reason.data(), length);
    end().reason[length] = 0;
    end().state.store(kAborted, std::memory_order_seq_cst);
  }
  for (int r = 0; r < size_; ++r) header(r).met.wake();
}

void Slots::throw_reason() const {
  // The writer may have died before it finished, so the wait for its text is limited.
  for (int i = 0; i < 1000 && end().state.load(std::memory_order_acquire) != kAborted; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw Error("comm", std::string(end().reason, strnlen(end().reason, kReasonBytes)));
}

bool Slots::left(int peer) const { return header(peer).left.load(std::memory_order_acquire) != 0; }

bool Slots::died(int peer) const {
  const Header& other = header(peer);
  if (other.joined.load(std::memory_order_acquire) == 0 || other.process == getpid()) return false;
  if (other.process_namespace != header(rank_).process_namespace) return false;
  return (kill(other.process, 0) != 0 && errno == ESRCH) || is_zombie(other.process);
}

void Slots::check(int peer) const {
  if (end().state.load(std::memory_order_acquire) != kRunning) throw_reason();
  if (peer == rank_) return;
  require(!died(peer), "comm", "group \"", group_, "\": rank ", peer, " (process ", header(peer).process, ") has died");
  require(!left(peer), "comm", "group \"", group_, "\": rank ", peer, " has left while rank ", rank_,
          " waits for it; it made fewer calls, or failed");
}

}  // namespace colossal::comm
