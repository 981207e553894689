// Written bytes are read back unchanged, also from a disk that completes requests partially. A disk that fails causes
// an error that names the place.
#include "colossal/memory/tiers/disk_space.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/memory/tiers/aligned_tensor.h"
#include "memory/shaped_file.h"
#include "support/temporary_folder.h"

namespace colossal::memory::disk_space_test {
namespace {

using Direction = BlockRequest::Kind;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMega = 1 << 20;

/// A DiskSpace with requests of 64 KiB in a ShapedFile.
struct ShapedDisk {
  test::TemporaryFolder folder;
  ShapedFile* file = new ShapedFile(folder.path());
  DiskSpace space{std::unique_ptr<BlockFile>(file), {.request_bytes = 64 << 10}};
};

/// Returns options for io_uring if available, for threads, and for threads through the system's cache.
std::vector<DiskOptions> all_ways() {
  std::vector<DiskOptions> ways(3);
  ways[1].file.io_uring = false;
  ways[2].file.direct = false;
  for (DiskOptions& way : ways) way.request_bytes = 64 << 10;
  return ways;
}

at::Tensor draw_bytes(int64_t count) {
  const at::Tensor drawn = empty_aligned({count}, at::kByte);
  return drawn.random_(0, 256);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "disk");
    return error.what();
  }
  return "no error";
}

TEST(DiskSpace, ReadsBackBytesOfAnySize) {
  for (const DiskOptions& way : all_ways()) {
    const test::TemporaryFolder folder;
    DiskSpace disk(folder / "made" + "/too", way);
    SCOPED_TRACE(disk.file().engine());
    EXPECT_EQ(disk.file().folder(), folder / "made" + "/too");
    std::vector<std::pair<DiskExtent, at::Tensor>> written;
    int64_t blocks = 0;
    for (const int64_t size : {0, 1, 4095, 4096, 4097, 65536, 65537, 5 * 65536 + 4095, 3'000'001}) {
      const at::Tensor bytes = draw_bytes(size);
      DiskExtent extent = disk.allocate(size);
      EXPECT_EQ(extent.bytes(), size);
      const at::Tensor source = empty_aligned({size}, at::kByte).copy_(bytes);
      disk.write(extent, source);  // no code waits for the write or keeps the tensor
      written.emplace_back(std::move(extent), bytes);
      blocks += whole_blocks(size);
    }
    std::vector<std::pair<at::Tensor, DiskTransfer>> read;
    for (const auto& [extent, bytes] : written) {
      at::Tensor back = empty_aligned({extent.bytes()}, at::kByte).zero_();
      const DiskTransfer transfer = disk.read(extent, back);
      read.emplace_back(back, transfer);
    }
    for (size_t i = 0; i < read.size(); ++i) {
      read[i].second.wait();
      EXPECT_TRUE(read[i].second.is_over());
      EXPECT_TRUE(read[i].first.equal(written[i].second)) << written[i].first.bytes() << " bytes";
    }
    const DiskSpace::Counts counts = disk.counts();
    EXPECT_EQ(counts.reads, 9);
    EXPECT_EQ(counts.writes, 9);
    EXPECT_EQ(counts.bytes_read, blocks);
    EXPECT_EQ(counts.bytes_written, blocks);
    EXPECT_EQ(counts.used_bytes, blocks);
    EXPECT_EQ(counts.file_bytes, 64 * kMega);
    EXPECT_GT(counts.busy_seconds, 0);
  }
}

TEST(DiskSpace, ReusesFreedSpaceWithoutOverlap) {
  test::TemporaryFolder folder;
  DiskSpace disk(folder.path(), {.reserve_bytes = 2 * kMega, .request_bytes = 16 << 10});
  EXPECT_EQ(disk.counts().file_bytes, 64 * kMega);
  // Each thread has at most a fifth of the file, and must see only its own values.
  const auto live = [&disk](unsigned seed) {
    std::mt19937 draw(seed);
    struct Held {
      DiskExtent extent;
      at::Tensor values;
    };
    std::vector<Held> held;
    int64_t number = 0;
    for (int i = 0; i < 120; ++i) {
      if (held.size() >= 10 || (!held.empty() && draw() % 3 == 0)) {
        std::swap(held[draw() % held.size()], held.back());
        const at::Tensor back = at::zeros_like(held.back().values);
        const at::Tensor aligned = empty_aligned(back.sizes(), at::kLong);
        disk.read(held.back().extent, aligned).wait();
        ASSERT_TRUE(aligned.equal(held.back().values));
        held.pop_back();
      } else {
        const at::Tensor values = empty_aligned({1 + static_cast<int64_t>(draw() % 100'000)}, at::kLong);
        values.fill_((seed << 20) + number++);
        held.push_back({disk.allocate(static_cast<int64_t>(values.nbytes())), values});
        disk.write(held.back().extent, values);
      }
    }
  };
  std::thread other([&] { live(2); });
  live(1);
  other.join();
  while (disk.counts().used_bytes > 0) std::this_thread::yield();  // an extent is freed after its last transfer
  EXPECT_EQ(disk.counts().file_bytes, 64 * kMega) << "two times ten tensors of 800 kB at most";
}

TEST(DiskSpace, OrdersTransfersOfOneExtent) {
  ShapedDisk disk;
  std::mutex mutex;
  std::vector<BlockRequest> held;
  disk.file->shape = [&](BlockRequest request) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(request));
  };
  const auto wait_for_request = [&] {
    for (;;) {
      const std::lock_guard lock(mutex);
      if (!held.empty()) return;
      std::this_thread::yield();
    }
  };
  const at::Tensor first = draw_bytes(5000), second = draw_bytes(5000), back = draw_bytes(5000);
  {
    const DiskExtent extent = disk.space.allocate(5000);
    disk.space.write(extent, first);
    disk.space.write(extent, second);
    const DiskTransfer read = disk.space.read(extent, back);
    for (const Direction expected : {Direction::Write, Direction::Write, Direction::Read}) {
      wait_for_request();
      EXPECT_FALSE(read.is_over());
      BlockRequest request;
      {
        const std::lock_guard lock(mutex);
        ASSERT_EQ(held.size(), 1) << "the next one waits";
        request = std::move(held.front());
        held.clear();
      }
      EXPECT_EQ(request.kind, expected);
      disk.file->file->begin(std::move(request));
    }
    read.wait();
    EXPECT_TRUE(back.equal(second));
    disk.space.read(extent, back);
  }
  wait_for_request();
  EXPECT_EQ(disk.space.counts().used_bytes, 8192) << "the extent is gone, a transfer of it is not";
  disk.file->file->begin(std::move(held.front()));
  while (disk.space.counts().used_bytes > 0) std::this_thread::yield();
}

TEST(DiskSpace, ContinuesPartialRequests) {
  ShapedDisk disk;
  std::atomic<int> begun = 0;
  disk.file->shape = [&](BlockRequest request) {
    const int turn = begun++ % 5;
    if (turn == 0) return request.done(-EAGAIN);
    if (turn == 1) return request.done(0);
    if (turn == 2) request.bytes = std::min<int64_t>(request.bytes, 4096);
    if (turn == 3) {  // it reports fewer bytes than it transferred
      const auto done = std::move(request.done);
      request.done = [done](int64_t result) { done(std::max<int64_t>(result - 1000, 0)); };
    }
    disk.file->file->begin(std::move(request));
  };
  const at::Tensor bytes = draw_bytes(1'000'001), back = draw_bytes(1'000'001);
  const DiskExtent extent = disk.space.allocate(1'000'001);
  disk.space.write(extent, bytes).wait();
  disk.space.read(extent, back).wait();
  EXPECT_TRUE(back.equal(bytes));
  EXPECT_GT(begun, 2 * 16 * 2) << "of 16 requests each";
  disk.file->shape = [&](BlockRequest request) { request.done(request.kind == Direction::Read ? 0 : -EAGAIN); };
  EXPECT_THAT(message_of([&] { disk.space.read(extent, back).wait(); }), HasSubstr("reading")) << "not for ever";
  EXPECT_THAT(message_of([&] { disk.space.write(extent, back).wait(); }), HasSubstr("writing"));
}

TEST(DiskSpace, ReportsErrorsOfTheDisk) {
  ShapedDisk disk;
  const at::Tensor bytes = draw_bytes(300'000), back = draw_bytes(300'000);
  const DiskExtent before = disk.space.allocate(8192), extent = disk.space.allocate(300'000);
  const auto read = [&] { disk.space.read(extent, back).wait(); };
  disk.space.write(extent, bytes).wait();

  disk.file->shape = [&](BlockRequest request) {
    request.offset == 8192 + 65536 ? request.done(-EIO) : disk.file->file->begin(request);
  };
  EXPECT_THAT(message_of(read), AllOf(HasSubstr("reading 65536 bytes at byte 73728 of the scratch file in " +
                                                disk.folder.path() + " failed: Input/output error"),
                                      HasSubstr("name a folder on another disk in memory.disk")));
  const DiskTransfer lost = disk.space.write(extent, bytes);
  const std::string message = message_of([&] { lost.wait(); });
  EXPECT_THAT(message, HasSubstr("writing 65536 bytes at byte 73728"));
  EXPECT_EQ(message_of([&] { lost.wait(); }), message) << "as often as it is asked";
  EXPECT_EQ(message_of(read), message) << "nobody reads what was not written";
  disk.file->shape = nullptr;
  disk.space.write(extent, bytes).wait();
  EXPECT_EQ(message_of(read), "no error") << "the next write mends it";
  EXPECT_EQ(disk.space.counts().writes, 2);
  EXPECT_EQ(disk.space.counts().reads, 1);

  disk.file->shape = [&](BlockRequest request) { request.done(-ENOSPC); };
  EXPECT_THAT(message_of([&] { disk.space.write(before, draw_bytes(8192)).wait(); }),
              HasSubstr("free space on that disk"));
}

TEST(DiskSpace, DetectsChangedBytes) {
  ShapedDisk disk;
  const at::Tensor bytes = draw_bytes(300'000), back = draw_bytes(300'000);
  const DiskExtent extent = disk.space.allocate(300'000);
  disk.space.write(extent, bytes).wait();
  const auto flip_at = [&](int64_t wanted) {
    disk.file->shape = [&, wanted](BlockRequest request) {
      char* at = request.memory + (wanted - request.offset);
      const bool here = request.offset <= wanted && wanted < request.offset + request.bytes;
      const auto done = request.done;
      request.done = [done, at, here](int64_t result) {
        if (here) *at ^= 4;
        done(result);
      };
      disk.file->file->begin(std::move(request));
    };
  };
  for (const int64_t wanted : {0, 150'000, 299'999}) {
    flip_at(wanted);
    EXPECT_THAT(
        message_of([&] { disk.space.read(extent, back).wait(); }),
        AllOf(HasSubstr("of the scratch file in " + disk.folder.path() + " differ from those that were written"),
              HasSubstr(concat("at byte ", wanted / 65536 * 65536)), HasSubstr("name a folder on another disk")));
  }
  flip_at(300'000);
  disk.space.read(extent, back).wait();
  EXPECT_TRUE(back.equal(bytes)) << "behind the end there is nothing of ours";

  // Reports a write that it did not do.
  disk.file->shape = [&](BlockRequest request) { request.done(request.bytes); };
  disk.space.write(extent, draw_bytes(300'000)).wait();
  disk.file->shape = nullptr;
  EXPECT_THAT(message_of([&] { disk.space.read(extent, back).wait(); }),
              HasSubstr("differ from those that were written"));
}

TEST(DiskSpace, RefusesAllocationsOnAFullDisk) {
  ShapedDisk disk;
  disk.file->room = 100 * kMega;
  const DiskExtent held = disk.space.allocate(30 * kMega);
  EXPECT_EQ(disk.space.counts().file_bytes, 64 * kMega);
  std::optional<DiskExtent> more = disk.space.allocate(40 * kMega);
  EXPECT_EQ(disk.space.counts().file_bytes, 70 * kMega) << "not 64 MiB more: they are not there";
  EXPECT_THAT(
      message_of([&] { disk.space.allocate(30 * kMega + 1); }),
      AllOf(HasSubstr("the scratch file in " + disk.folder.path() + " has 70.0 MiB and cannot grow by 30.0 MiB"),
            HasSubstr("the disk has 30.0 MiB free (No space left on device)"),
            HasSubstr("free space on that disk, or name a folder on another disk in memory.disk")));
  more.reset();
  EXPECT_EQ(disk.space.allocate(70 * kMega - kBlock).bytes(), 70 * kMega - kBlock) << "what was freed, and 30 MiB";

  auto file = std::make_unique<ShapedFile>(disk.folder.path());
  file->room = kMega;
  EXPECT_THAT(message_of([&] { DiskSpace(std::move(file), {.reserve_bytes = 2 * kMega}); }),
              HasSubstr("cannot grow by 2.0 MiB"));
}

TEST(DiskSpace, GrowsWithinAFileSizeLimit) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // ignored, as cli::main does
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 20 * kMega;  // less than the usual growth of a file
  const test::TemporaryFolder folder;
  std::string message;
  int64_t held = 0;
  {
    DiskSpace disk(folder.path());
    setrlimit(RLIMIT_FSIZE, &small);
    const DiskExtent extent = disk.allocate(15 * kMega);
    const at::Tensor bytes = draw_bytes(15 * kMega);
    disk.write(extent, bytes).wait();
    held = disk.counts().file_bytes;
    message = message_of([&] { disk.allocate(15 * kMega); });
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(held, 15 * kMega);
  EXPECT_THAT(message, AllOf(HasSubstr("(File too large)"), HasSubstr("raise the limit on the size of a file")));
}

TEST(DiskSpace, UsesANamelessFileThatOutlivesItsFolder) {
  auto folder = std::make_unique<test::TemporaryFolder>();
  const std::string path = folder->path();
  DiskSpace disk(path);
  const DiskExtent extent = disk.allocate(kMega);
  const at::Tensor bytes = draw_bytes(kMega), back = draw_bytes(kMega);
  disk.write(extent, bytes).wait();
  EXPECT_TRUE(std::filesystem::is_empty(path)) << "whoever kills this process leaves nothing";
  folder.reset();
  ASSERT_FALSE(std::filesystem::exists(path));
  disk.write(extent, bytes).wait();
  disk.read(extent, back).wait();
  EXPECT_TRUE(back.equal(bytes));
}

TEST(DiskSpace, RefusesUnusableFolders) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  EXPECT_THAT(message_of([&] { DiskSpace disk(file); }),
              AllOf(HasSubstr("the scratch folder " + file + " cannot be created"),
                    HasSubstr("name another folder in memory.disk")));
  EXPECT_THAT(message_of([&] { DiskSpace disk(file + "/below"); }), HasSubstr("Not a directory"));
  EXPECT_THAT(message_of([] { DiskSpace disk("/proc"); }),
              AllOf(HasSubstr("cannot create a file in the scratch folder /proc"),
                    HasSubstr("allow this user to write there")));
}

TEST(DiskSpace, RefusesTensorsThatADiskCannotTransfer) {
  const test::TemporaryFolder folder;
  DiskSpace disk(folder.path());
  const DiskExtent extent = disk.allocate(8000);
  const at::Tensor bytes = draw_bytes(12'000);
  for (const at::Tensor& wrong :
       {bytes.narrow(0, 1, 8000), bytes.narrow(0, 0, 8000).view({80, 100}).t(), bytes.narrow(0, 4096, 7904),
        at::empty({8000}, at::device(at::kMeta).dtype(at::kByte)), at::Tensor()})
    EXPECT_NE(message_of([&] { disk.write(extent, wrong); }), "no error");
  EXPECT_THAT(message_of([&] { disk.write(extent, bytes.narrow(0, 0, 8001)); }),
              HasSubstr("the bytes of its extent, 8000: got 8001"));
  EXPECT_THAT(message_of([&] { disk.read(extent, bytes.narrow(0, 0, 8000)); }),
              HasSubstr("must be written before it is read"));
  EXPECT_THAT(message_of([&] { disk.write(DiskExtent(), bytes); }), HasSubstr("without space"));
  EXPECT_THAT(message_of([&] { DiskSpace(folder.path(), {.request_bytes = 1000}); }), HasSubstr("multiples of 4096"));
  EXPECT_THAT(message_of([&] { DiskSpace(folder.path(), {.file = {.requests = 0}}); }),
              HasSubstr("at least one request"));
  EXPECT_EQ(disk.counts().writes, 0);
}

TEST(ScratchFile, UsesIoUringIfAvailable) {
  const test::TemporaryFolder folder;
  const auto threaded = open_scratch_file(folder.path(), {.io_uring = false});
  EXPECT_STREQ(threaded->engine(), "threads");
  const auto cached = open_scratch_file(folder.path(), {.direct = false});
  EXPECT_STREQ(cached->engine(), "threads");
  EXPECT_FALSE(cached->is_direct());
  if (!threaded->is_direct()) GTEST_SKIP() << "the filesystem of " << folder.path() << " has no O_DIRECT";
  const auto file = open_scratch_file(folder.path(), {});
  EXPECT_TRUE(file->is_direct());
  if (file->engine() == std::string("threads"))
    GTEST_SKIP() << "built without liburing, or the system refuses io_uring: the other tests ran with threads";
  EXPECT_STREQ(file->engine(), "io_uring");
}

}  // namespace
}  // namespace colossal::memory::disk_space_test
