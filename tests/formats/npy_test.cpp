#include "colossal/formats/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/torch_bytes.h"

namespace colossal::formats::npy_test {
namespace {

using test::npy_of;
using testing::ElementsAre;
using testing::HasSubstr;

StridedTensor header_of(const std::string& bytes) { return read_npy_header(bytes, "x.npy"); }
std::string refusal(const std::string& bytes) {
  return test::thrown_message([&] { header_of(bytes); });
}

TEST(NpyHeader, HasTypeShapeAndStrides) {
  const StridedTensor rows = header_of(npy_of("<f4", "(2, 3, 4)", ""));
  EXPECT_EQ(rows.type, ElementType::F32);
  EXPECT_THAT(rows.shape, ElementsAre(2, 3, 4));
  EXPECT_THAT(rows.strides, ElementsAre(12, 4, 1));
  EXPECT_THAT(header_of(npy_of("<i8", "(2, 3, 4)", "", true)).strides, ElementsAre(1, 2, 6));
  EXPECT_TRUE(header_of(npy_of("|b1", "()", "")).shape.empty());
  EXPECT_THAT(header_of(npy_of("|u1", "(7,)", "")).shape, ElementsAre(7));
  std::string second = npy_of("<f2", "(5,)", "");  // version 2 has two more bytes of length
  second[6] = 2;
  second.insert(10, 2, '\0');
  EXPECT_EQ(header_of(second).begin, second.size());
}

TEST(NpyHeader, RefusesWhatIsNoArrayOfNumbers) {
  EXPECT_THAT(refusal("PK"), HasSubstr("must be an array of NumPy"));
  EXPECT_THAT(refusal(npy_of("|O", "(1,)", "")), HasSubstr("got elements of type |O, Python objects"));
  EXPECT_THAT(refusal(npy_of("<U5", "(1,)", "")), HasSubstr("got elements of type <U5"));
  EXPECT_THAT(refusal(npy_of(">f4", "(1,)", "")), HasSubstr("must be little-endian"));
  EXPECT_THAT(refusal(npy_of("<f4", "(-1,)", "")), HasSubstr("damaged at -1"));
  EXPECT_THAT(refusal(npy_of("<f4", "(99999999999999999999,)", "")), HasSubstr("damaged"));
  EXPECT_THAT(refusal(npy_of("<f4", "(1", "")), HasSubstr("damaged"));
  std::string bytes = npy_of("<f4", "(1,)", "");
  EXPECT_THAT(refusal(bytes.substr(0, 30)), HasSubstr("truncated"));
  bytes[6] = 9;
  EXPECT_THAT(refusal(bytes), HasSubstr("got 9"));
}

class NpzFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!reads_zips()) GTEST_SKIP() << "built without libzip";
  }
  std::string refusal(const test::ZipPart& part) {
    const std::string path = folder_.write("x.npz", test::zip_of({part}));
    return test::thrown_message([&] { NpzFile file(path); });
  }
  test::TemporaryFolder folder_;
};

TEST_F(NpzFiles, ReadsArrays) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string array = npy_of("<f4", "(2, 3)", test::raw(values));
  const NpzFile file(folder_.write(
      "a.npz",
      test::zip_of({{"a//weights.npy", array}, {"b.npy", array, true}, {"c.npy", npy_of("<f8", "(0,)", "")}})));
  ASSERT_EQ(file.tensors().size(), 3u);
  for (const char* name : {"a//weights", "b"}) {
    std::vector<float> got(6);
    file.read(file.tensors().at(name), got.data());
    EXPECT_EQ(got, values) << name;
  }
  EXPECT_EQ(file.tensors().at("c").span(), 0);
}

TEST_F(NpzFiles, RefusesArraysOfOtherSizes) {
  EXPECT_THAT(refusal({"a.npy", npy_of("<f4", "(2,)", "1234")}), HasSubstr("a.npy must be within its storage"));
  EXPECT_THAT(refusal({"a.npy", npy_of("<f4", "(1,)", "12345")}), HasSubstr("got 1 bytes more"));
  EXPECT_THAT(refusal({"a.npy", npy_of("<f4", "(4611686018427387904, 4)", "1234")}), HasSubstr("its shape overflows"));
  EXPECT_THAT(refusal({"a.txt", "x"}), HasSubstr("must be an array, NAME.npy"));
}

}  // namespace
}  // namespace colossal::formats::npy_test
