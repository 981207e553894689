// Reads and writes of tensors through memory::DiskSpace, compared with the system alone: pread and pwrite with
// O_DIRECT, with equal sizes and numbers of pending transfers, in the same run.
//
// Usage: colossal_disk_bench FOLDER [MiB a round, 1024] [rounds, 4] [MiB a tensor, 64] [under way, 2]
//                            [MiB a request, 4] [requests under way, 8]
//        One JSON object per line: what, kind (both: half of the bytes are read while the others are written), MB/s of
//        the best round and of the median one, and CPU seconds per GB. All run in turns, so that they see the same
//        disk; the first round does not count.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/aligned_tensor.h"
#include "colossal/memory/tiers/disk_space.h"

namespace memory = colossal::memory;
using colossal::require;
using Kind = memory::BlockRequest::Kind;

namespace {

struct Sizes {
  int64_t total, tensor;
  int under_way;
  int64_t count() const { return total / tensor; }
};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Uses one thread for each pending transfer.
class Raw {
 public:
  Raw(const std::string& folder, const Sizes& sizes, std::vector<at::Tensor> tensors)
      : sizes_(sizes), tensors_(std::move(tensors)) {
    file_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    require(file_ >= 0 && ::fallocate(file_, 0, 0, sizes.total) == 0, "bench", "no file with O_DIRECT in ", folder);
  }
  ~Raw() { ::close(file_); }

  void run(Kind kind) const { run(kind, kind); }

  /// Runs `one` on every second thread and `other` on the others.
  void run(Kind one, Kind other) const {
    std::vector<std::thread> threads;
    for (int t = 0; t < sizes_.under_way; ++t)
      threads.emplace_back([this, kind = t % 2 ? other : one, t] {
        for (int64_t i = t; i < sizes_.count(); i += sizes_.under_way)
          transfer(kind, i, tensors_[static_cast<size_t>(t)]);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void transfer(Kind kind, int64_t i, const at::Tensor& tensor) const {
    for (int64_t done = 0; done < sizes_.tensor;) {
      char* bytes = static_cast<char*>(tensor.data_ptr()) + done;
      const auto size = static_cast<size_t>(sizes_.tensor - done);
      const int64_t offset = i * sizes_.tensor + done;
      const ssize_t moved =
          kind == Kind::Read ? ::pread(file_, bytes, size, offset) : ::pwrite(file_, bytes, size, offset);
      require(moved > 0, "bench", "the system failed to read or write");
      done += moved;
    }
  }

  Sizes sizes_;
  std::vector<at::Tensor> tensors_;
  int file_;
};

class Ours {
 public:
  Ours(const std::string& folder, const Sizes& sizes, std::vector<at::Tensor> tensors,
       const memory::DiskOptions& options)
      : sizes_(sizes), tensors_(std::move(tensors)), space_(folder, options) {
    for (int64_t i = 0; i < sizes.count(); ++i) extents_.push_back(space_.allocate(sizes.tensor));
  }

  const char* name() const { return space_.file().engine(); }
  void run(Kind kind) { run(kind, kind); }

  /// Runs `one` on every second tensor and `other` on the others.
  void run(Kind one, Kind other) {
    std::vector<memory::DiskTransfer> transfers(tensors_.size());
    for (size_t i = 0; i < extents_.size(); ++i) {
      const size_t turn = i % tensors_.size();
      transfers[turn].wait();
      transfers[turn] = (turn % 2 ? other : one) == Kind::Read ? space_.read(extents_[i], tensors_[turn])
                                                               : space_.write(extents_[i], tensors_[turn]);
    }
    for (const memory::DiskTransfer& transfer : transfers) transfer.wait();
  }

 private:
  Sizes sizes_;
  std::vector<at::Tensor> tensors_;
  memory::DiskSpace space_;
  std::vector<memory::DiskExtent> extents_;
};

struct Candidate {
  std::string what, kind;
  std::function<void()> run;
  std::vector<double> seconds{};
  double cpu = 0;
};

void print(Candidate& candidate, double bytes) {
  std::sort(candidate.seconds.begin(), candidate.seconds.end());
  const auto rounds = candidate.seconds.size();
  std::printf("{\"what\": \"%s\", \"kind\": \"%s\", \"best_mb_s\": %.0f, \"median_mb_s\": %.0f, \"cpu_s_gb\": %.3f}\n",
              candidate.what.c_str(), candidate.kind.c_str(), 1e-6 * bytes / candidate.seconds.front(),
              1e-6 * bytes / candidate.seconds[rounds / 2],
              candidate.cpu / (1e-9 * bytes * static_cast<double>(rounds)));
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 1, "bench", "name a folder on the disk to measure");
  const auto number = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const std::string folder = argv[1];
  const int64_t mega = 1 << 20, rounds = number(3, 4);
  const Sizes sizes{number(2, 1024) * mega, number(4, 64) * mega, static_cast<int>(number(5, 2))};
  memory::DiskOptions options;
  options.request_bytes = number(6, 4) * mega;
  options.file.requests = static_cast<int>(number(7, 8));
  options.reserve_bytes = sizes.total;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < sizes.under_way; ++i)
    tensors.push_back(memory::empty_aligned({sizes.tensor}, at::kByte).random_(0, 256));

  Raw raw(folder, sizes, tensors);
  Ours ours(folder, sizes, tensors, options);
  options.file.io_uring = false;
  Ours threads(folder, sizes, tensors, options);
  std::vector<Candidate> candidates;
  for (const Kind kind : {Kind::Write, Kind::Read}) {
    const char* name = kind == Kind::Read ? "read" : "write";
    candidates.push_back({"raw", name, [&raw, kind] { raw.run(kind); }});
    for (Ours* way : {&ours, &threads}) candidates.push_back({way->name(), name, [way, kind] { way->run(kind); }});
  }
  // Reference for a training step that is limited by the disk: such a step reads about as much as it writes.
  candidates.push_back({"raw", "both", [&raw] { raw.run(Kind::Read, Kind::Write); }});
  for (Ours* way : {&ours, &threads})
    candidates.push_back({way->name(), "both", [way] { way->run(Kind::Read, Kind::Write); }});
  for (int64_t round = 0; round <= rounds; ++round)
    for (Candidate& candidate : candidates) {
      const double cpu = cpu_seconds();
      const colossal::Stopwatch watch;
      candidate.run();
      if (round == 0) continue;
      candidate.seconds.push_back(watch.seconds());
      candidate.cpu += cpu_seconds() - cpu;
    }
  for (Candidate& candidate : candidates) print(candidate, static_cast<double>(sizes.total));
}
