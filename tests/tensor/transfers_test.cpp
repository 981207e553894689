// Announced transfers reach listeners in order, with one wait each.
#include "colossal/tensor/transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/tensor/flops.h"

namespace colossal::tensor::transfers_test {
namespace {

using testing::ElementsAre;
using Kind = Operation::Kind;

/// Records announcements as text. Transfers are numbered from 0 in the order in which they began.
struct Heard {
  std::vector<std::string> texts;
  std::vector<int64_t> numbers;
  OperationListener listener{[this](double, const Operation& what) { hear(what); }};

  void hear(const Operation& what) {
    if (what.kind == Kind::Wait) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if (numbers[i] == what.transfer) texts.push_back(concat("wait ", i));
      return;
    }
    numbers.push_back(what.transfer);
    texts.push_back(concat(what.kind == Kind::Disk ? "disk " : "copy ", what.read, " ", what.written));
  }
};

TEST(Transfers, AnnouncesTheirBytesAndWaits) {
  Heard heard;
  Transfer out = announce_copy_to_host(100), read = announce_disk_read(200), write = announce_disk_write(300);
  announce_wait(read);
  announce_wait(read);  // is over
  announce_wait(out);
  announce_copy_to_device(400);
  EXPECT_NE(write.number, 0);
  EXPECT_THAT(heard.texts,
              ElementsAre("copy 100 0", "disk 200 0", "disk 0 300", "wait 1", "wait 0", "copy 0 400", "wait 3"));
}

TEST(Transfers, CostNothingWithoutAListener) {
  EXPECT_EQ(announce_copy_to_host(100).number, 0);
  EXPECT_EQ(announce_disk_read(100).number, 0);
  EXPECT_EQ(announce_disk_write(100).number, 0);
  Transfer none;
  announce_wait(none);
}

TEST(Transfers, WaitForCopiesOfASideStreamTogether) {
  Heard heard;
  TransfersAside aside;
  {
    const TransfersAside::Scope scope(aside);
    announce_copy_to_device(1);
    announce_copy_to_device(2);
  }
  announce_copy_to_device(3);
  aside.wait();
  aside.wait();  // none is left
  EXPECT_THAT(heard.texts, ElementsAre("copy 0 1", "copy 0 2", "copy 0 3", "wait 2", "wait 0", "wait 1"));
}

}  // namespace
}  // namespace colossal::tensor::transfers_test
