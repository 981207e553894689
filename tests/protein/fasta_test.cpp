// FASTA files: what is read, and the message of each refusal.
#include "colossal/protein/fasta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protein/packed.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::protein::fasta_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<FastaRecord> read(const std::string& bytes) {
  const test::TemporaryFolder folder;
  return read_fasta(folder.write("x.fasta", bytes));
}

/// Returns the message without the folder.
std::string complaint_of(const std::string& bytes) {
  const std::string message = test::thrown_message([&] { read(bytes); });
  const size_t begin = message.find("x.fasta");
  return begin == std::string::npos ? message : message.substr(begin);
}

TEST(Fasta, ReadsWrappedLinesOfAnyCaseAndEnd) {
  const auto records = read("\xef\xbb\xbf>one|A first\r\nMKTa\r\n yi*\r\n\r\n>two\tB\nGX\rB\n>3\nA");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].name, "one_A");
  EXPECT_EQ(records[0].header, "one|A first");
  EXPECT_THAT(records[0].chains, ElementsAre("MKTAYI"));
  EXPECT_EQ(records[0].line, 1);
  EXPECT_EQ(records[1].name, "two");
  EXPECT_THAT(records[1].chains, ElementsAre("GXB"));
  EXPECT_EQ(records[1].line, 5);
  EXPECT_THAT(records[2].chains, ElementsAre("A"));
}

TEST(Fasta, SeparatesTheChainsOfAComplex) {
  EXPECT_THAT(read(">c\nMK*:\nTA:y\n")[0].chains, ElementsAre("MK", "TA", "Y"));
  EXPECT_THAT(chains_of("mkt:AY", "--sequence"), ElementsAre("MKT", "AY"));
}

TEST(Fasta, ReadsPackedFiles) {
  const std::string text = ">a\nMKT\n>b\nAY\n";
  EXPECT_EQ(read(packed(text)).size(), 2u);
  EXPECT_EQ(read(packed(">a\nMKT\n") + packed(">b\nAY\n") + std::string(5, '\0')).size(), 2u);
  const std::string whole = packed(text);
  EXPECT_THAT(complaint_of(whole.substr(0, whole.size() - 9)), HasSubstr("is damaged or cut short"));
  EXPECT_THAT(complaint_of(whole.substr(0, 12)), HasSubstr("is damaged or cut short"));
  EXPECT_THAT(complaint_of(whole + "more"), HasSubstr("is damaged: other bytes follow"));
}

TEST(Fasta, NamesFilesByTheFirstWord) {
  EXPECT_EQ(file_name_of(" sp|P1/2:\xc3\xa4 rest"), "sp_P1_2___");
  EXPECT_EQ(file_name_of("a.b-c_9"), "a.b-c_9");
  EXPECT_EQ(file_name_of(""), "");
}

TEST(Fasta, RefusesByFileAndLine) {
  EXPECT_EQ(
      complaint_of(">a\nMK\nT1A\n"),
      "x.fasta:3: a residue must be a letter from A to Z: got `1`; write X for an unknown residue, and `:` between "
      "chains");
  EXPECT_THAT(complaint_of(">a\nM-K\n"), HasSubstr("x.fasta:2: a residue must be a letter from A to Z: got `-`"));
  EXPECT_THAT(complaint_of(std::string(">a\nM\0K\n", 7)),
              HasSubstr("x.fasta:2: a residue must be a letter from A to Z: got byte 0"));
  EXPECT_THAT(complaint_of(">a\nM*K\n"), HasSubstr("x.fasta:2: `*` must be at the end of a chain: got `K`"));
  EXPECT_THAT(complaint_of(""), HasSubstr("x.fasta:1: a FASTA file must have at least one record: got none"));
  EXPECT_THAT(complaint_of("\n \n"), HasSubstr("must have at least one record"));
  EXPECT_THAT(complaint_of("MKT\n"), HasSubstr("x.fasta:1: a FASTA file must begin with `>` and a name: got `M`"));
  EXPECT_THAT(complaint_of(">a\nM\n>b\n\n>c\nK\n"),
              HasSubstr("x.fasta:3: a record must have at least one residue: got none"));
  EXPECT_THAT(complaint_of(">a\n*\n"), HasSubstr("x.fasta:1: a record must have at least one residue"));
  EXPECT_THAT(complaint_of(">a\nM::K\n"), HasSubstr("x.fasta:2: chain 2 of a record must have at least one residue"));
  EXPECT_THAT(complaint_of(">a\nM:\n"), HasSubstr("x.fasta:1: chain 2 of a record must have at least one residue"));
  EXPECT_THAT(complaint_of("> \nM\n"), HasSubstr("x.fasta:1: a record must have a name after `>`"));
  EXPECT_THAT(complaint_of(">a|b x\nM\n>a_b\nK\n"),
              HasSubstr("x.fasta:3: names of records must differ: got a_b as in line 1"));
}

TEST(Fasta, RefusesSequencesOfFlags) {
  const auto complaint = [](const char* letters) {
    return test::thrown_message([&] { chains_of(letters, "--sequence"); });
  };
  EXPECT_THAT(complaint("MK?"), HasSubstr("[fasta] --sequence: a residue must be a letter from A to Z: got `?`"));
  EXPECT_THAT(complaint(""), HasSubstr("--sequence: a record must have at least one residue"));
  EXPECT_THAT(complaint(":"), HasSubstr("--sequence: chain 1 of a record must have at least one residue"));
}

}  // namespace
}  // namespace colossal::protein::fasta_test
