#include "colossal/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "colossal/base/error.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::safetensors_test {
namespace {

using testing::HasSubstr;

std::string with_length(const std::string& header) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header;
}

TEST(Safetensors, RoundTripsEveryDtypeBitwise) {
  test::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  const at::Tensor bits = at::arange(0, 96, at::kByte);
  for (at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2})
    tensors[c10::toString(dtype)] = bits.view(dtype).view({3, -1});
  tensors["bool"] = at::tensor({1, 0, 1}, at::kInt).to(at::kBool);
  tensors["scalar"] = at::full({}, 2.5, at::kDouble);
  tensors["empty"] = at::empty({4, 0, 3}, at::kFloat);
  write_safetensors(folder / "a.safetensors", tensors, {{"format", "pt"}});

  const SafetensorsReader reader(folder / "a.safetensors");
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.entries().size(), tensors.size());
  for (const auto& [name, value] : tensors) {
    const at::Tensor read = reader.tensor(name);
    EXPECT_EQ(read.scalar_type(), value.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), value.sizes()) << name;
    EXPECT_TRUE(value.numel() == 0 || std::memcmp(read.const_data_ptr(), value.const_data_ptr(), value.nbytes()) == 0)
        << name;
  }
}

TEST(Safetensors, ViewsOutliveTheReader) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", {{"x", at::arange(100, at::kDouble)}});
  at::Tensor view;
  {
    view = SafetensorsReader(folder / "a.safetensors").tensor("x");
  }
  EXPECT_TRUE(view.equal(at::arange(100, at::kDouble)));
}

TEST(Safetensors, WritesEqualFilesForEqualContent) {
  test::TemporaryFolder folder;
  const auto x = at::arange(6, at::kFloat), y = at::arange(3, at::kByte);
  for (const char* name : {"a", "b"}) write_safetensors(folder / name, {{"y", y}, {"x", x.view({2, 3}).t()}});
  EXPECT_EQ(test::read_all(folder / "a"), test::read_all(folder / "b"));
  const SafetensorsReader reader(folder / "a");
  EXPECT_TRUE(reader.tensor("x").equal(x.view({2, 3}).t())) << "strided tensors are written in logical order";
  EXPECT_EQ(static_cast<unsigned char>(test::read_all(folder / "a")[0]) % 8, 0);
}

TEST(Safetensors, ReadsUnalignedTensors) {
  test::TemporaryFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I32","shape":[2],"data_offsets":[1,9]}})";
  const std::string path = folder.write("a", with_length(header) + std::string("\7\1\0\0\0\2\0\0\0", 9));
  EXPECT_TRUE(SafetensorsReader(path).tensor("b").equal(at::tensor({1, 2}, at::kInt)));
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* message;
};

std::vector<Hostile> hostile_files() {
  const auto one = [](const std::string& entry, const std::string& data = std::string(8, '\0')) {
    return with_length("{\"x\":" + entry + "}") + data;
  };
  const std::string two =
      R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":)";
  std::string huge = std::string(7, '\xff') + '\x7f';
  return {
      {"empty", "", "at least 8 bytes"},
      {"short", "abc", "at least 8 bytes"},
      {"huge_header", huge + "{}", "at most 100 MB"},
      {"header_past_end", std::string("\x40\0\0\0\0\0\0\0{}", 10), "the file only 2"},
      {"not_json", with_length("{\"x\":"), "not valid JSON"},
      {"trailing_garbage", with_length("{}x"), "not valid JSON"},
      {"not_utf8", with_length("{\"\xff\":1}"), "not valid JSON"},
      {"array", with_length("[]"), "must be a JSON object"},
      {"nested", with_length("{\"x\":" + std::string(100000, '[')), "nested too deeply"},
      {"duplicate",
       with_length(
           R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})") +
           "12345678",
       "two members are named x"},
      {"entry_not_object", one("3"), "must be a JSON object"},
      {"no_dtype", one(R"({"shape":[8],"data_offsets":[0,8]})"), "dtype must be a string"},
      {"unknown_dtype", one(R"({"dtype":"F128","shape":[8],"data_offsets":[0,8]})"), "unknown dtype F128"},
      {"no_shape", one(R"({"dtype":"U8","data_offsets":[0,8]})"), "shape must be a list"},
      {"negative_size", one(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})"), "whole numbers"},
      {"fractional_size", one(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})"), "whole numbers"},
      {"size_past_63_bits", one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]})"),
       "whole numbers"},
      {"shape_overflows", one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
       "shape overflows"},
      {"shape_overflows_to_match", one(R"({"dtype":"U8","shape":[6148914691236517206,3],"data_offsets":[0,2]})", "12"),
       "shape overflows"},
      {"zero_hides_overflow", one(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", ""),
       "shape overflows"},
      {"wrong_bytes", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "need 12 bytes: got 8"},
      {"backwards", one(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"), "must be [begin, end]"},
      {"three_offsets", one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,4,8]})"), "must be [begin, end]"},
      {"outside", one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})"), "ends at byte 9 of 8"},
      {"far_outside", one(R"({"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]})"),
       "of 8"},
      {"overlap", with_length(two + "[2,6]}}") + "123456", "overlaps"},
      {"same_bytes", with_length(two + "[0,4]}}") + "1234", "overlaps"},
      {"hole", with_length(two + "[5,9]}}") + "123456789", "gap before tensor y"},
      {"starts_late", one(R"({"dtype":"U8","shape":[7],"data_offsets":[1,8]})"), "gap before tensor x"},
      {"left_over", one(R"({"dtype":"U8","shape":[7],"data_offsets":[0,7]})"), "1 bytes follow"},
      {"metadata_list", with_length(R"({"__metadata__":[]})"), "__metadata__ must be a JSON object"},
      {"metadata_number", with_length(R"({"__metadata__":{"a":1}})"), "strings to strings"},
  };
}

TEST(Safetensors, RefusesHostileFilesByName) {
  test::TemporaryFolder folder;
  for (const Hostile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const std::string path = folder.write(hostile.name, hostile.bytes);
    try {
      SafetensorsReader reader(path);
      ADD_FAILURE() << "was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.component(), "safetensors");
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr(hostile.message));
    }
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  test::TemporaryFolder folder;
  write_safetensors(folder / "a", {{"x", at::arange(3, at::kFloat)}, {"y", at::arange(5, at::kByte)}});
  const std::string bytes = test::read_all(folder / "a");
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW(SafetensorsReader(folder.write("b", bytes.substr(0, length))), Error) << length;
}

TEST(Safetensors, SurvivesEveryFlippedHeaderByte) {  // the file is read or refused, without a crash
  test::TemporaryFolder folder;
  write_safetensors(folder / "a", {{"x", at::arange(3, at::kFloat)}, {"y", at::arange(5, at::kByte)}});
  const std::string bytes = test::read_all(folder / "a");
  for (size_t at = 0; at < bytes.size() - 17; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      try {
        const SafetensorsReader reader(folder.write("b", damaged));
        for (const auto& [name, entry] : reader.entries())
          EXPECT_EQ(reader.tensor(name).nbytes(), entry.end - entry.begin);
      } catch (const Error&) {
      }
    }
  }
}

TEST(Safetensors, RefusesMissingFilesAndFolders) {
  test::TemporaryFolder folder;
  EXPECT_THROW(SafetensorsReader(folder / "none"), Error);
  EXPECT_THROW(SafetensorsReader(folder.path()), Error);
}

TEST(SafetensorsWriter, RefusesUndeclaredTensors) {
  test::TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"x", at::kFloat, {2}}});
  EXPECT_THROW(writer.finish(), Error) << "x is missing";
  EXPECT_THROW(writer.write(at::zeros({3})), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"x", at::kFloat, {2}}, {"x", at::kFloat, {2}}}), Error);
  EXPECT_THROW(SafetensorsWriter(folder / "a", {{"x", at::kComplexDouble, {2}}}), Error);
}

TEST(SafetensorsWriter, KeepsTheOldFileUntilItFinishes) {
  test::TemporaryFolder folder;
  const std::string path = folder.write("a", "old");
  {
    SafetensorsWriter writer(path, {{"x", at::kFloat, {2}}});
    writer.write(at::zeros({2}));
    EXPECT_EQ(test::read_all(path), "old");
  }
  EXPECT_EQ(test::read_all(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing is left beside it";
}

TEST(SafetensorsWriter, KeepsTheOldFileIfTheDiskIsFull) {
  test::TemporaryFolder folder;
  const std::string path = folder.write("a", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG, as it does with ENOSPC
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_safetensors(path, {{"x", at::zeros({1 << 16})}});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr(path));
  EXPECT_EQ(test::read_all(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace colossal::checkpoint::safetensors_test
