// Records of FASTA files as texts: what is read, resumed, refused and skipped, and the rows that they make.
#include "colossal/data/streams/fasta_records.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/streams/document_stream.h"
#include "colossal/data/streams/json_lines.h"
#include "support/cifar_folder.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::fasta_records_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kChains[] = ">one a chain\r\nmkT\r\nAY I*\r\n\r\n>two\nKR\n>one\nGGG";

struct Read {
  std::vector<std::string> lines, faults;
  std::vector<LinePosition> positions;  ///< before each record
};

Read read(const std::string& path, LinePosition start = {}, int64_t longest = 1000) {
  const auto reader = RecordLines::open(path, longest, start, {});
  Read found{.positions = {reader->position()}};
  for (std::string line; reader->next(line); found.positions.push_back(reader->position())) {
    found.lines.push_back(reader->is_cut() ? "cut" : line);
    if (!reader->fault().empty()) found.faults.push_back(reader->fault());
  }
  return found;
}

TEST(FastaRecords, BecomeTextsAndResumeAtEachHeader) {
  const test::TemporaryFolder folder;
  test::write_gzip(folder / "packed.fa.gz", kChains);
  for (const std::string& path : {folder.write("plain.FASTA", kChains), folder / "packed.fa.gz"}) {
    EXPECT_TRUE(is_record_file(path));
    const Read all = read(path);
    EXPECT_THAT(all.lines, ElementsAre(R"({"text":"MKTAYI"})", R"({"text":"KR"})", R"({"text":"GGG"})"));
    EXPECT_EQ(all.positions[1], (LinePosition{28, 4}));
    for (size_t i = 0; i < all.lines.size(); ++i) {
      const Read rest = read(path, all.positions[i]);
      EXPECT_EQ(rest.lines, std::vector(all.lines.begin() + static_cast<int64_t>(i), all.lines.end()));
      EXPECT_EQ(rest.positions.back(), all.positions.back());
    }
  }
}

TEST(FastaRecords, NameTheLineOfWhatTheyCannotUse) {
  const test::TemporaryFolder folder;
  const Read odd = read(folder.write("x.faa", ">a\nMK1\n>b\nMK\n>c\n\n>d\nMK:AY\n"));
  EXPECT_THAT(odd.lines, ElementsAre("", R"({"text":"MK"})", "", ""));
  ASSERT_EQ(odd.faults.size(), 3u);
  EXPECT_THAT(odd.faults[0], HasSubstr("x.faa:1: a residue must be a letter from A to Z: got `1`"));
  EXPECT_THAT(odd.faults[1], HasSubstr("x.faa:5: a record must have at least one residue"));
  EXPECT_THAT(odd.faults[2], HasSubstr("x.faa:7: a record to learn must be one chain: got 2"));
  EXPECT_THAT(read(folder / "x.faa", {}, 1).lines, ElementsAre("cut", "cut", "", "cut"));
  EXPECT_THAT(test::thrown_message([&] { read(folder.write("y.fa", "\nMK\n")); }),
              HasSubstr("y.fa:2: a FASTA file must begin with `>` and a name: got `M`"));
}

TEST(FastaRecords, EndARunOrGetSkipped) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("x.fasta", ">a\nMK1\n>b\nMKT\n");
  const std::shared_ptr<const text::Tokenizer> bytes = text::make_tokenizer("bytes");
  DocumentStreamOptions options{.batch_size = 1, .sequence = 4, .records = {.shuffle = false}};
  const auto rows = [&] {
    DocumentStream stream({StreamSource::open("x", path, 1)}, bytes, options);
    return stream.next({}).at("ids");
  };
  EXPECT_THAT(test::thrown_message(rows), HasSubstr("x.fasta:1: a residue must be a letter from A to Z"));
  options.records.on_error = OnError::Skip;
  EXPECT_TRUE(at::equal(rows(), at::tensor({'M' + 0, 'K' + 0, 'T' + 0, 256}, at::kLong).unsqueeze(0)));
}

// A text begins with the begin token of letters, which is never masked.
TEST(FastaRecords, MakeRowsOfWholeChains) {
  const test::TemporaryFolder folder;
  folder.write("vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nM\nK\nT\n<mask>");
  const std::shared_ptr<const text::Tokenizer> letters = text::make_tokenizer(folder.path());
  DocumentStreamOptions options{.batch_size = 1, .sequence = 10, .records = {.shuffle = false}};
  const auto ids_of = [&](const char* field) {
    DocumentStream stream({StreamSource::open("x", folder.write("x.fasta", ">a\nMKT\n>b\nKK\n"), 1)}, letters, options);
    return stream.next({}).at(field)[0];
  };
  EXPECT_TRUE(at::equal(ids_of("ids"), at::tensor({0, 4, 5, 6, 2, 0, 5, 5, 2, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(ids_of("documents"), at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 2}, at::kLong)));
  options.masking = Masking{.share = 1, .random = 0, .kept = 0, .mask_id = 7, .vocabulary = 8, .begin_id = 0};
  EXPECT_TRUE(at::equal(ids_of("ids"), at::tensor({0, 7, 7, 7, 2, 0, 7, 7, 2, 0}, at::kLong)));
}

}  // namespace
}  // namespace colossal::data::fasta_records_test
