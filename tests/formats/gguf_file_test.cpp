#include "colossal/formats/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "colossal/base/error.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::formats::gguf_file_test {
namespace {

using Kind = GgufValue::Kind;
using testing::HasSubstr;

GgufValues sample_values() {
  return {{"general.architecture", GgufValue::text("llama")},
          {"a.flag", GgufValue::flag(true)},
          {"a.integer", GgufValue::integer(7)},
          {"a.real", GgufValue::real(0.25)},
          {"a.list.texts", GgufValue::list(std::vector<std::string>{"one", "", "two"})},
          {"a.list.bytes", GgufValue::list(Kind::U8, {0, 255})},
          {"a.list.reals", GgufValue::list(std::vector<double>{1.5, -2})},
          {"a.list.none", GgufValue::list(Kind::I32, {})}};
}

std::string sample(const std::string& path) {
  const std::string rows(2 * 34, '\1'), list(3 * 4, '\2');
  GgufWriter writer(path, sample_values(), {{"list", {3}, gguf_type("F32")}, {"matrix", {2, 32}, gguf_type("q8_0")}});
  writer.write(list);
  writer.write(rows);
  writer.finish();
  return test::read_all(path);
}

/// Returns the error of a GgufFile with these bytes.
std::string complaint_of(const std::string& bytes) {
  test::TemporaryFolder folder;
  const std::string path = folder.write("x.gguf", bytes);
  return test::thrown_message([&] { GgufFile file(path); });
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Returns a header that claims this number of tensors and values, followed by `rest`.
std::string file_of(uint32_t version, uint64_t tensors, uint64_t values, const std::string& rest) {
  return "GGUF" + bytes_of(version) + bytes_of(tensors) + bytes_of(values) + rest;
}

std::string text_of(const std::string& text) { return bytes_of<uint64_t>(text.size()) + text; }

std::string tensor_of(std::vector<uint64_t> sizes, uint32_t type, uint64_t offset) {
  std::string row = text_of("t") + bytes_of(static_cast<uint32_t>(sizes.size()));
  for (const uint64_t size : sizes) row += bytes_of(size);
  return row + bytes_of(type) + bytes_of(offset);
}

TEST(GgufFile, RoundTrips) {
  test::TemporaryFolder folder;
  sample(folder / "a.gguf");
  const GgufFile file(folder / "a.gguf");
  EXPECT_EQ(file.values(), sample_values());
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(file.bytes(file.tensors()[0]), std::string(12, '\2'));
  EXPECT_EQ(file.bytes(file.tensors()[1]), std::string(68, '\1'));
  EXPECT_EQ(file.tensors()[1].offset, 32u);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("a.integer"), 7);
  EXPECT_EQ(file.integer("b", 3), 3);
  EXPECT_EQ(file.real("a.real"), 0.25);
  EXPECT_EQ(file.texts("a.list.texts").size(), 3u);
  EXPECT_TRUE(is_gguf(folder / "a.gguf"));
  EXPECT_FALSE(is_gguf(folder.path()));
  EXPECT_FALSE(is_gguf(folder / "b.gguf"));
}

TEST(GgufFile, ReadsVersion2AndRefusesOthers) {
  EXPECT_EQ(complaint_of(file_of(2, 0, 0, "")), "");
  EXPECT_THAT(complaint_of(file_of(1, 0, 0, "")), HasSubstr("must be of GGUF version 2 or 3: got 1"));
  EXPECT_THAT(complaint_of(file_of(0x03000000, 0, 0, "")), HasSubstr("is big-endian"));
  EXPECT_THAT(complaint_of("GGML"), HasSubstr("does not begin with GGUF"));
  EXPECT_THAT(complaint_of(""), HasSubstr("does not begin with GGUF"));
}

TEST(GgufFile, RefusesInvalidValues) {
  const auto value = [](uint32_t kind, const std::string& rest) {
    return complaint_of(file_of(3, 0, 1, text_of("k") + bytes_of(kind) + rest));
  };
  EXPECT_THAT(value(99, "........"), HasSubstr("unknown type 99"));
  EXPECT_THAT(value(8, bytes_of<uint64_t>(1000)), HasSubstr("1000 characters"));
  EXPECT_THAT(value(9, bytes_of<uint32_t>(4) + bytes_of<uint64_t>(1) + "...."), "");
  EXPECT_THAT(value(9, bytes_of<uint32_t>(4) + bytes_of(~uint64_t{0})), HasSubstr("values of a list"));
  EXPECT_THAT(value(9, bytes_of<uint32_t>(9) + bytes_of<uint64_t>(1) + std::string(20, '\0')),
              HasSubstr("a list within a list"));
  EXPECT_THAT(value(10, bytes_of(~uint64_t{0})), HasSubstr("above 63 bits"));
  const std::string twice = text_of("k") + bytes_of<uint32_t>(0) + "1";
  EXPECT_THAT(complaint_of(file_of(3, 0, 2, twice + twice)), HasSubstr("the key k twice"));
  EXPECT_THAT(
      complaint_of(file_of(3, 0, 1, text_of("general.alignment") + bytes_of<uint32_t>(4) + bytes_of<uint32_t>(12))),
      HasSubstr("power of two"));
  EXPECT_THAT(complaint_of(file_of(3, 0, ~uint64_t{0}, "")), HasSubstr("too short"));
}

TEST(GgufFile, RefusesInvalidTensors) {
  const auto tensor = [](const std::string& row) {
    std::string bytes = file_of(3, 1, 0, row);
    bytes.resize(96 + 32);
    return complaint_of(bytes);
  };
  EXPECT_EQ(tensor(tensor_of({8}, 0, 0)), "");
  EXPECT_THAT(tensor(tensor_of({8}, 0, 64)), HasSubstr("ends after the end"));
  EXPECT_THAT(tensor(tensor_of({8}, 0, 8)), HasSubstr("multiple of the alignment"));
  EXPECT_THAT(tensor(tensor_of({8}, 8, 0)), HasSubstr("divisible by 32, the block size of type Q8_0"));
  EXPECT_THAT(tensor(tensor_of({8}, 77, 0)), HasSubstr("unknown type 77"));
  EXPECT_THAT(tensor(tensor_of({}, 0, 0)), HasSubstr("1 to 4"));
  EXPECT_THAT(tensor(tensor_of({0}, 0, 0)), HasSubstr("dimension of 0"));
  EXPECT_THAT(tensor(tensor_of({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0)), HasSubstr("too many elements"));
}

TEST(GgufFile, NamesTheKeyOfAnotherKind) {
  test::TemporaryFolder folder;
  sample(folder / "a.gguf");
  const GgufFile file(folder / "a.gguf");
  const auto said = [](const auto& work) { return test::thrown_message(work); };
  EXPECT_THAT(said([&] { file.text("nothing"); }), HasSubstr("has no nothing"));
  EXPECT_THAT(said([&] { file.text("a.integer"); }), HasSubstr("a.integer must be a text"));
  EXPECT_THAT(said([&] { file.integer("a.real"); }), HasSubstr("a.real must be an integer"));
  EXPECT_THAT(said([&] { file.real("a.list.reals"); }), HasSubstr("one value, not a list"));
  EXPECT_THAT(said([&] { file.texts("a.flag"); }), HasSubstr("must be a list"));
  EXPECT_THAT(said([&] { file.integers("a.list.texts"); }), HasSubstr("a list of integers"));
}

TEST(GgufWriter, RefusesBlocksOfAnotherTensor) {
  test::TemporaryFolder folder;
  const std::vector<GgufTensor> one{{"t", {2}, gguf_type("F32")}};
  EXPECT_THAT(test::thrown_message([&] { GgufWriter(folder / "a", {}, one).write("123"); }),
              HasSubstr("got 3 bytes, which is not the size of t"));
  EXPECT_THAT(test::thrown_message([&] { GgufWriter(folder / "a", {}, one).finish(); }),
              HasSubstr("1 tensors were not written, t"));
  EXPECT_THAT(test::thrown_message([&] { GgufWriter(folder / "a", {}, {{"t", {3}, gguf_type("Q4_0")}}); }),
              HasSubstr("divisible by 32"));
  EXPECT_FALSE(is_gguf(folder / "a"));
}

/// Makes COLOSSAL_MUTATED_FILES mutated files (default 500). Each must be refused, or all its contents must be
/// readable.
TEST(GgufFile, ReadsOrRefusesMutatedFiles) {
  test::TemporaryFolder folder;
  const std::string whole = sample(folder / "a.gguf");
  const char* asked = std::getenv("COLOSSAL_MUTATED_FILES");
  std::mt19937 random(1);
  int refused = 0;
  const int count = asked ? std::atoi(asked) : 500;
  for (int i = 0; i < count; ++i) {
    std::string bytes = whole;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const std::string path = folder.write("m.gguf", bytes);
    try {
      const GgufFile file(path);
      size_t sum = 0;
      for (const GgufTensor& tensor : file.tensors())
        for (const char byte : file.bytes(tensor)) sum += static_cast<unsigned char>(byte);
      EXPECT_LE(sum, 255 * bytes.size() * file.tensors().size());
    } catch (const Error& error) {
      EXPECT_EQ(error.component(), "gguf") << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, count / 4);
}

TEST(GgufWriter, WritesATensorInParts) {
  test::TemporaryFolder folder;
  const std::string want = sample(folder / "whole.gguf"), row(34, '\1'), list(3 * 4, '\2');
  GgufWriter writer(folder / "parts.gguf", sample_values(),
                    {{"list", {3}, gguf_type("F32")}, {"matrix", {2, 32}, gguf_type("q8_0")}});
  writer.write_part(list);
  writer.write_part(row);
  EXPECT_THAT(test::thrown_message([&] { writer.write(row + row); }), HasSubstr("not the size of matrix"));
  EXPECT_THAT(test::thrown_message([&] { writer.write_part(row + row); }),
              HasSubstr("68 bytes of a part of matrix, of which 34 are left"));
  EXPECT_THAT(test::thrown_message([&] { writer.finish(); }), HasSubstr("1 tensors were not written, matrix first"));
  writer.write_part(row);
  writer.finish();
  EXPECT_EQ(test::read_all(folder / "parts.gguf"), want);
}

}  // namespace
}  // namespace colossal::formats::gguf_file_test
