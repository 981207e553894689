// Parquet files of other writers, and damaged and hostile ones: the rows that are read, and the errors.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <random>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/parquet/column.h"
#include "colossal/data/parquet/rows.h"
#include "colossal/data/streams/document_stream.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/texts/labelled.h"
#include "colossal/data/texts/pair_samples.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::parquet_test {
namespace {

using testing::HasSubstr;
using Lines = std::vector<std::string>;

const std::string kFiles = test::source_dir() + "/tests/data/parquet/";  // files that make_files.py wrote

Lines read(const std::string& path, const Lines& columns, int64_t start = 0, size_t most = 1000) {
  const auto rows = RecordLines::open(path, 1 << 20, {start, start}, columns);
  Lines lines;
  for (std::string line; lines.size() < most && rows->next(line);) lines.push_back(line);
  return lines;
}

std::string refusal(const std::string& path, const Lines& columns = {"text"}) {
  return test::thrown_message([&] { read(path, columns); });
}

/// Returns row `i` as make_files.py wrote it.
nlohmann::json row(int64_t i) {
  nlohmann::json object = {{"text", nullptr}, {"number", i * 1'000'000'007}, {"label", i % 3}};
  if (i % 11 != 3) object["text"] = "row " + std::to_string(i) + " \u00e9" + std::string(i % 7, 'x');
  return object;
}

TEST(Parquet, ReadsRowByRowFromAnyRow) {
  for (const char* name : {"snappy", "zstd", "gzip", "none", "version2", "plain", "fallback"}) {
    SCOPED_TRACE(name);
    const std::string path = kFiles + name + ".parquet";
    const Lines all = read(path, {});
    ASSERT_EQ(all.size(), 60u);
    for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(nlohmann::json::parse(all[i]), row(i)) << i;
    for (const int64_t start : {1, 24, 25, 26, 49, 50, 59, 60})
      EXPECT_EQ(read(path, {}, start), Lines(all.begin() + start, all.end())) << start;
    EXPECT_EQ(read(path, {"label"})[4], R"({"label":1})");
    EXPECT_THAT(test::thrown_message([&] { read(path, {}, 61); }), HasSubstr("row 61, it has 60"));
    EXPECT_THAT(refusal(path, {"body"}), testing::AllOf(HasSubstr(path), HasSubstr("no column body")));
    EXPECT_THAT(refusal(path, {"nested"}), HasSubstr("no column nested of texts or numbers"));
  }
  EXPECT_EQ(read(kFiles + "required.parquet", {})[59], R"({"text":"row 59"})");
}

TEST(Parquet, NamesUnsupportedForms) {
  EXPECT_THAT(refusal(kFiles + "brotli.parquet"), HasSubstr("brotli.parquet: compression codec number 4"));
  EXPECT_THAT(refusal(kFiles + "lz4.parquet"), HasSubstr("write the file with compression=\"zstd\""));
  EXPECT_THAT(refusal(kFiles + "delta.parquet"), HasSubstr("encoding number 7 of values is not supported"));
}

TEST(Parquet, NamesDamagedFiles) {
  const test::TemporaryFolder folder;
  const std::string bytes = test::read_all(kFiles + "plain.parquet");
  const auto refused = [&](const std::string& content) { return refusal(folder.write("d.parquet", content)); };
  for (const std::string& content :
       {std::string(), std::string("PAR1"), std::string("PAR1PAR1PAR1"), bytes.substr(0, 400)})
    EXPECT_THAT(refused(content), HasSubstr("d.parquet: ")) << content.size();
  EXPECT_THAT(refused(bytes.substr(0, bytes.size() - 4) + "PARE"), HasSubstr("encrypted"));
  std::string edited = bytes;
  ASSERT_NE(edited.find("row 7"), std::string::npos);
  edited[edited.find("row 7")] = 'R';
  EXPECT_THAT(refused(edited), HasSubstr("the checksum of a page differs"));
}

TEST(Parquet, UnpacksSnappyCopies) {
  // The data is "ab", a copy of eight bytes from a distance of two, and a literal whose length is a separate byte.
  const std::string packed = std::string(
      "\x0d\x04"
      "ab"
      "\x11\x02\xf0\x02"
      "xyz",
      11);
  EXPECT_EQ(unpack_page(packed, 1, 13), "abababababxyz");
  for (size_t cut = 0; cut < packed.size(); ++cut)
    EXPECT_THROW(unpack_page(packed.substr(0, cut), 1, 13), Error) << cut;
  EXPECT_THROW(unpack_page(packed, 1, 12), Error);
  EXPECT_THROW(unpack_page(std::string("\x0d\x04"
                                       "ab"
                                       "\x11\x03",
                                       6),
                           1, 13),
               Error)
      << "from before the beginning";
  EXPECT_THROW(unpack_page("", 0, int64_t{1} << 40), Error);
}

TEST(Parquet, ReadsPackedAndRepeatedRuns) {
  ParquetRuns runs(std::string_view("\x06\x05\x03\x88\xc6\xfa", 6), 3);  // a run of three fives, then packed 0 to 7
  for (const uint32_t want : {5, 5, 5, 0, 1, 2, 3, 4, 5, 6, 7}) EXPECT_EQ(runs.next(), want);
  EXPECT_THROW(runs.next(), Error);
  ParquetRuns nothing(std::string_view("\x00\x00", 2), 1);
  EXPECT_THROW(nothing.next(), Error) << "an empty run would go on for ever";
}

// For any bytes, reading ends with rows or an error. It does not crash, and its memory stays bounded.
TEST(Parquet, ReadsOrRefusesMutatedFiles) {
  const test::TemporaryFolder folder;
  std::mt19937 random(11);
  int64_t refused = 0, count = 0;
  for (const char* name : {"snappy", "zstd", "gzip", "version2", "none", "fallback"}) {
    const std::string whole = test::read_all(kFiles + name + ".parquet");
    for (int i = 0; i < 100; ++i, ++count) {
      std::string bytes = whole;
      for (unsigned change = 0; change <= i % 3u; ++change) {
        // Half of the changes are in the footer, which has the most kinds of errors.
        const size_t at = i % 2 == 0 ? random() % bytes.size() : bytes.size() - 1 - random() % 700 % bytes.size();
        bytes[at] = static_cast<char>(i % 4 < 2 ? random() % 256 : bytes[at] ^ 1 << random() % 8);
      }
      if (i % 25 == 0) bytes.resize(random() % bytes.size());
      try {
        EXPECT_LE(read(folder.write("m.parquet", bytes), {}, 0, 500).size(), 500u);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, count / 4);
}

TEST(Parquet, ServesStreamsAndLabelledTexts) {
  const test::TemporaryFolder folder;
  std::filesystem::copy(kFiles + "required.parquet", folder / "a.parquet");
  folder.write("b.jsonl", "{\"text\": \"line\"}\n");
  EXPECT_TRUE(is_record_folder(folder.path()));
  const std::shared_ptr<const text::Tokenizer> tokenizer = text::make_tokenizer("bytes");
  DocumentStreamOptions options{.batch_size = 2, .sequence = 32, .records = {.shuffle_bytes = 1000}};
  const auto stream = [&] {
    return std::make_unique<DocumentStream>(std::vector{StreamSource::open("all", folder.path(), 1)}, tokenizer,
                                            options);
  };
  Batches first(stream(), false);
  for (int i = 0; i < 5; ++i) first.next();
  Batches second(stream(), false);
  second.restore(nlohmann::json::parse(first.state().dump()));
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(at::equal(first.next().at("ids"), second.next().at("ids"))) << i;

  EXPECT_THAT(test::thrown_message([&] { read_text_pairs(kFiles + "snappy.parquet", {.target_column = "label"}); }),
              HasSubstr("snappy.parquet:1: column label must be text"));
  std::filesystem::copy(kFiles + "required.parquet", folder / "pairs.PARQUET");
  EXPECT_EQ(read_text_pairs(folder / "pairs.PARQUET", {.target_column = "text"}).targets.at(59), "row 59");
  std::filesystem::copy(kFiles + "required.parquet", folder / "pairs");
  EXPECT_THAT(test::thrown_message([&] { read_text_pairs(folder / "pairs", {.on_error = OnError::Skip}); }),
              HasSubstr("pairs must be a text file: got a Parquet file"));
  EXPECT_THAT(test::thrown_message([&] { read_labelled_texts(folder / "pairs", {.on_error = OnError::Skip}); }),
              HasSubstr("pairs must be a text file: got a Parquet file"));

  const LabelledTexts texts = read_labelled_texts(kFiles + "snappy.parquet", {.on_error = OnError::Skip});
  EXPECT_EQ(texts.texts.size(), 54u);  // the nulls are skipped
  EXPECT_EQ(texts.classes, 3);
  EXPECT_EQ(texts.skipped_records.size(), 6u);
  EXPECT_THAT(texts.skipped_records[0], HasSubstr("snappy.parquet:4: column text must be text: got null"));
}

}  // namespace
}  // namespace colossal::data::parquet_test
