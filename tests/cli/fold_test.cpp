// `colossal fold`: input, files, refusals, several models and ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "cli/outcome.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/cli/fold_records.h"
#include "colossal/fold/source_keys.h"
#include "colossal/protein/structure_reader.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/small_folding_model.h"
#include "support/temporary_folder.h"

namespace colossal::cli::fold_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class Fold : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    const models::Registry registry = program().models;
    test::write_small_folding(folder() / "a", test::small_folding_shape(registry));
    test::write_small_folding(folder() / "b", test::small_folding_shape(registry), 2);
    test::write_small_folding(folder() / "c",
                              test::small_folding_shape(registry, {.points = 1, .predicts_errors = false}));
    folder().write("two.fasta", ">one first\nMKTAyi\nAK*\n>tw/o\nGXP:AR\n");
  }
  static void TearDownTestSuite() { delete folder_; }
  static const test::TemporaryFolder& folder() { return *folder_; }
  static run::Program program() {
    run::Program program = run::built_in();
    program.models.add(test::small_folding());
    return program;
  }
  /// Runs the command with a model of a folder, or of several.
  static Outcome run(const std::string& command, Words words, const Words& from = {"a"}) {
    words.insert(words.begin(), {"colossal", command});
    for (const std::string& name : from) words.insert(words.end(), {"--from", folder() / name});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = main(static_cast<int>(argv.size()), argv.data(), program());
    return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
  }
  static Outcome fold(const Words& words, const Words& from = {"a"}) { return run("fold", words, from); }
  static std::string refused(const Words& words, const Words& from = {"a"}) {
    const Outcome outcome = fold(words, from);
    EXPECT_THAT(outcome.status, ::testing::AnyOf(1, 2));
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
  static std::string bytes(const std::string& name) { return test::read_all(folder() / name); }
  static std::string fasta(const std::string& name) { return folder() / name; }

 private:
  static test::TemporaryFolder* folder_;
};
test::TemporaryFolder* Fold::folder_ = nullptr;

TEST_F(Fold, WritesAFileForEachRecord) {
  const Outcome outcome = fold({"--input", fasta("two.fasta"), "--to", folder() / "out/", "--pae", folder() / "pae",
                                "--tensors", folder() / "tensors", "--passes", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, concat(folder() / "out/one.cif", "\n", folder() / "out/tw_o.cif", "\n"));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("one: 8 residues; a pass needs "),
                                 HasSubstr("of which a pair representation takes 1.5 KiB"),
                                 HasSubstr("tw_o: 1 residue is none of the 20 types and gets no atoms (X): A2"),
                                 HasSubstr("one: pass 1 of 2: pLDDT "), HasSubstr(", CA distances changed by ")));
  EXPECT_LT(outcome.err.find("tw_o: 5 residues; a pass needs"), outcome.err.find("one: pass 1")) << "needs are first";
  const std::string complex = bytes("out/tw_o.cif");
  EXPECT_THAT(complex, AllOf(HasSubstr("ATOM"), HasSubstr("_entity_poly_seq"), HasSubstr("_ma_qa_metric_local"),
                             Not(HasSubstr("nan"))));
  const json errors = json::parse(bytes("pae/tw_o.json"));
  EXPECT_EQ(errors[0].at("predicted_aligned_error").size(), 5u) << "the linker is left out";
  EXPECT_EQ(errors[0].at("max_predicted_aligned_error"), 31.75);
  const checkpoint::SafetensorsReader tensors(folder() / "tensors/tw_o.safetensors");
  EXPECT_EQ(tensors.tensor("positions").sizes(), (std::vector<int64_t>{5, 37, 3}));
  EXPECT_EQ(tensors.tensor("atom_mask")[1].sum().item<int64_t>(), 0);
}

TEST_F(Fold, RepeatsItsBytesAndPrintsALineForEachChain) {
  const Words words{"--input", fasta("two.fasta"), "--json", "--to"};
  const auto with = [&](const std::string& to) {
    Words all = words;
    all.push_back(folder() / to);
    return all;
  };
  const Outcome outcome = fold(with("first"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(fold(with("second")).status, 0);
  EXPECT_EQ(bytes("first/one.cif"), bytes("second/one.cif"));
  const json one = json::parse(outcome.out.substr(0, outcome.out.find('\n')));
  EXPECT_EQ(one.at("name"), "one");
  EXPECT_EQ(one.at("residues"), 8);
  EXPECT_EQ(one.at("passes"), 3);
  EXPECT_EQ(one.at("pair_bytes"), 8 * 8 * 6 * 4);
  EXPECT_GT(one.at("peak_bytes").get<int64_t>(), 8 * 8 * 6 * 4);
  EXPECT_GT(one.at("ptm").get<double>(), 0);
  EXPECT_EQ(one.at("plan"), json::array());
  EXPECT_EQ(fold({"--sequence", "MKTAyiAK", "--to", folder() / "one.cif", "--parallel.pipeline", "1"}).status, 0);
  EXPECT_EQ(bytes("one.cif"), bytes("first/one.cif")) << "a chain has the name of its file";
}

TEST_F(Fold, WritesPdbWithoutAHeadOfErrors) {
  const Outcome outcome =
      fold({"--sequence", "GAR", "--to", folder() / "new/gar.pdb", "--json", "--tolerance", "1e9"}, {"c"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(json::parse(outcome.out).at("ptm").is_null());
  EXPECT_EQ(json::parse(outcome.out).at("passes"), 2);
  EXPECT_THAT(bytes("new/gar.pdb"), HasSubstr("\nATOM      1  N   GLY A   1"));
  EXPECT_THAT(refused({"--sequence", "GAR", "--to", folder() / "x.cif", "--pae", folder() / "x.json"}, {"c"}),
              HasSubstr("--pae must be for a model that predicts errors"));
}

TEST_F(Fold, RanksTheResultsOfSeveralModels) {
  const Outcome outcome = fold({"--input", fasta("two.fasta"), "--to", folder() / "ranked", "--json"}, {"a", "b"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::map<std::string, double> ptm;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line);
    ptm[concat(object.at("name").get<std::string>(), object.at("rank").get<int>())] = object.at("ptm");
  }
  ASSERT_EQ(ptm.size(), 4u);
  EXPECT_GE(ptm["one1"], ptm["one2"]);
  EXPECT_GE(ptm["tw_o1"], ptm["tw_o2"]);
  EXPECT_NE(bytes("ranked/one_rank1.cif"), bytes("ranked/one_rank2.cif"));
  EXPECT_THAT(refused({"--sequence", "A", "--to", folder() / "x.cif"}, {"a", "b"}),
              HasSubstr("a folder for several models"));
  std::vector<fold::Folded> results(3);
  results[0].plddt = 60, results[1].plddt = 70, results[2].plddt = 65;
  EXPECT_EQ(ranked(results), (std::vector<size_t>{1, 2, 0}));
  results[0].ptm = .5, results[1].ptm = .4, results[2].ptm = .6;
  EXPECT_EQ(ranked(results), (std::vector<size_t>{2, 0, 1}));
}

TEST_F(Fold, LeavesOutFinishedRecords) {
  const Words words{"--input", fasta("two.fasta"),   "--to",    folder() / "resumed",
                    "--pae",   folder() / "resumed", "--resume"};
  ASSERT_EQ(fold(words).status, 0);
  std::filesystem::remove(folder() / "resumed/tw_o.json");
  folder().write("resumed/one.cif", "finished");
  const Outcome outcome = fold(words);
  EXPECT_EQ(outcome.out, concat(folder() / "resumed/tw_o.cif\n"));
  EXPECT_THAT(outcome.err, HasSubstr("1 record has its files already, left out (--resume)"));
  EXPECT_EQ(bytes("resumed/one.cif"), "finished");
  EXPECT_THAT(fold(words).err, HasSubstr("all records have their files already"));
}

TEST_F(Fold, RefusesInputBeforeWeightsAreRead) {
  // folders without weights: what they lack would be the message if it were looked for
  std::filesystem::create_directories(folder() / "empty");
  std::filesystem::copy_file(folder() / "a/config.json", folder() / "empty/config.json");
  const auto of_file = [](const std::string& text) {
    return refused({"--input", folder().write("wrong.fasta", text), "--to", folder() / "wrong"}, {"empty"});
  };
  EXPECT_THAT(of_file(">a\nMK1A\n"), HasSubstr("wrong.fasta:2: a residue must be a letter from A to Z: got `1`"));
  EXPECT_THAT(of_file(""), HasSubstr("wrong.fasta:1: a FASTA file must have at least one record"));
  EXPECT_THAT(of_file(">a\n>b\nMK\n"), HasSubstr("wrong.fasta:1: a record must have at least one residue"));
  EXPECT_THAT(of_file(">a x\nM\n>a y\nK\n"),
              HasSubstr("wrong.fasta:3: names of records must differ: got a as in line 1"));
  EXPECT_THAT(of_file(">a\nXXX\n"),
              HasSubstr("wrong.fasta:1: a sequence must have at least one residue of the 20 types"));
  const auto of_words = [](Words words, const Words& from = {"empty"}) {
    words.insert(words.end(), {"--sequence", "MKTAYI:GA"});
    return refused(words, from);
  };
  const std::string to = folder() / "wrong", file = folder() / "x.cif";
  EXPECT_THAT(of_words({"--to", to, "--passes", "0"}), HasSubstr("passes must be at least 1: got 0"));
  EXPECT_THAT(of_words({"--to", to, "--tolerance", "-1"}), HasSubstr("tolerance must be 0 or more"));
  EXPECT_THAT(of_words({"--to", to, "--msa", "x.a3m"}), HasSubstr("--msa must be for a model that reads alignments"));
  EXPECT_THAT(of_words({"--to", to, "--clusters", "4"}), HasSubstr("--clusters, --extra and --masked must be for"));
  EXPECT_THAT(refused({"--to", to, "--sequence", ""}),
              HasSubstr("--sequence: a record must have at least one residue"));
  EXPECT_THAT(of_words({"--to", to, "--templates", to}),
              HasSubstr("--templates must be for a model that reads templates"));
  EXPECT_THAT(of_words({"--to", to, "--precision", "fp16"}), HasSubstr("set --precision bf16"));
  EXPECT_THAT(of_words({"--to", to, "--tokenizer", "bytes"}), HasSubstr("reads residues"));
  EXPECT_THAT(of_words({"--to", folder() / "x.ent"}), HasSubstr("--to must end in .cif or .pdb, or be a folder"));
  EXPECT_THAT(of_words({"--to", to, "--input", "x"}), HasSubstr("either --sequence or --input"));
  EXPECT_THAT(refused({"--input", fasta("two.fasta"), "--to", file}, {"empty"}),
              HasSubstr("--to must be a folder for 2 records"));
  EXPECT_THAT(refused({"--sequence", std::string(10000, 'G'), "--to", folder() / "x.pdb"}, {"empty"}),
              HasSubstr("at most 9,999 residues: got 10000 in chain A; write mmCIF"));
  EXPECT_THAT(of_words({"--to", to}), HasSubstr("has neither model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(Fold, ReadsAlignmentsAndFeatures) {
  test::write_small_folding(folder() / "msa", test::small_folding_shape(program().models, {.reads_alignments = true}));
  folder().write("both.fasta", ">x\nMKTAYI\n>x_1\nGARP\n");
  folder().write("rows/x.a3m", ">q\nMKTAYI\n>a\nMK-AYV\n>b\nLKTAYI\n");
  folder().write("rows/x_1.a3m", ">q\nGARP\n");
  folder().write("rows/xy.a3m", "not for these");
  const auto folded = [](Words words, const std::string& to) {
    words.insert(words.end(), {"--to", folder() / to});
    const Outcome outcome = fold(words, {"msa"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.err;
  };
  const Words both{"--input", folder() / "both.fasta"}, rows{"--msa", folder() / "rows"};
  folded(both, "alone");
  folded({both[0], both[1], rows[0], rows[1]}, "aligned");
  folded({both[0], both[1], rows[0], rows[1], "--seed", "2"}, "seeded");
  EXPECT_NE(bytes("alone/x.cif"), bytes("aligned/x.cif"));
  std::filesystem::create_directories(folder() / "begun");
  std::filesystem::copy_file(folder() / "aligned/x_1.cif", folder() / "begun/x_1.cif");
  folded({both[0], both[1], rows[0], rows[1], "--resume"}, "begun");
  EXPECT_EQ(bytes("begun/x.cif"), bytes("aligned/x.cif")) << "without the rows of the finished x_1";
  EXPECT_NE(bytes("aligned/x.cif"), bytes("seeded/x.cif"));
  folder().write("x.fasta", ">x\nMKTAYI\n");
  const Words one{"--input", folder() / "x.fasta", "--msa", folder() / "rows/x.a3m"};
  Words made = one;
  made.insert(made.end(), {"--passes", "3", "--to", folder() / "x.safetensors"});
  ASSERT_EQ(run("features", made, {}).status, 0);
  folded({"--input", folder() / "x.safetensors"}, "x.cif");
  EXPECT_EQ(bytes("x.cif"), bytes("aligned/x.cif"));
  const auto refused_by = [&](Words words) {
    words.insert(words.end(), {"--to", folder() / "refused"});
    return refused(words, {"msa"});
  };
  EXPECT_THAT(refused_by({both[0], both[1], one[2], one[3]}), HasSubstr("--msa must be a folder for 2 records"));
  EXPECT_THAT(refused_by({one[0], one[1], "--msa", folder() / "rows/x_1.a3m"}), HasSubstr("x_1.a3m:1"));
  EXPECT_THAT(refused_by({"--input", folder() / "x.safetensors", "--clusters", "4"}), HasSubstr("which has the rows"));
  EXPECT_THAT(refused_by({"--sequence", "MK:GA"}),
              HasSubstr("a complex needs a model of several chains: got 2 chains"));
  folder().write("more.fasta", ">z\nGARP\n>x\nMKTAYI\n");
  EXPECT_THAT(refused_by({"--input", folder() / "more.fasta", rows[0], rows[1]}),
              HasSubstr("more.fasta:1: --msa must have a file for each record: got none that begins with z"));
}

/// Returns the objects of lines of JSON.
std::vector<json> objects_of(const std::string& text) {
  std::vector<json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  return objects;
}

TEST_F(Fold, ComparesStructures) {
  if (!protein::reads_structures()) GTEST_SKIP() << "built without gemmi";
  ASSERT_EQ(fold({"--input", fasta("two.fasta"), "--to", folder() / "known"}).status, 0);
  ASSERT_EQ(fold({"--sequence", "MKTAYIAK", "--to", folder() / "one.pdb"}, {"b"}).status, 0);
  const auto compared = [](const std::string& a, const std::string& b, const Words& flags) {
    Words words{folder() / a, folder() / b};
    words.insert(words.end(), flags.begin(), flags.end());
    return run("compare", words, {});
  };
  const json same = json::parse(compared("known/one.cif", "known/one.cif", {"--json"}).out);
  EXPECT_EQ(same.at("residues"), 8);
  EXPECT_LT(same.at("rmsd").get<double>(), 1e-6);
  for (const char* score : {"lddt_ca", "tm", "gdt_ts"}) EXPECT_NEAR(same.at(score).get<double>(), 1, 1e-9) << score;
  const json other = json::parse(compared("one.pdb", "known/one.cif", {"--json"}).out);
  EXPECT_GT(other.at("rmsd").get<double>(), .1);
  EXPECT_THAT(compared("one.pdb", "known/one.cif", {}).out,
              AllOf(StartsWith("RMSD "), HasSubstr(" A over 8 residues, lDDT-CA "), HasSubstr(", GDT-TS ")));
  EXPECT_THAT(compared("known/one.cif", "two.fasta", {}).err, HasSubstr("two.fasta"));
}

TEST_F(Fold, EvaluatesChainsOfKnownStructures) {
  if (!protein::reads_structures()) GTEST_SKIP() << "built without gemmi";
  std::filesystem::create_directories(folder() / "chains");
  ASSERT_EQ(fold({"--sequence", "MKTAYIAK", "--to", folder() / "chains/one.cif"}).status, 0);
  ASSERT_EQ(fold({"--sequence", "GARPK", "--to", folder() / "chains/two.pdb"}, {"b"}).status, 0);
  const Outcome outcome = run("evaluate", {"--structures", folder() / "chains", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<json> lines = objects_of(outcome.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("name"), "one_A");
  EXPECT_LT(lines[0].at("rmsd").get<double>(), .002) << "the model that folded it, rounded to .001";
  EXPECT_GT(lines[0].at("plddt").get<double>(), 0);
  EXPECT_EQ(lines[1].at("name"), "two_A");
  EXPECT_GT(lines[1].at("rmsd").get<double>(), .01);
  EXPECT_EQ(lines[2].at("chains"), 2);
  for (const char* name : {"rmsd", "lddt_ca", "tm", "gdt_ts", "plddt"})
    EXPECT_NEAR(lines[2].at(name).get<double>(),
                (lines[0].at(name).get<double>() + lines[1].at(name).get<double>()) / 2, 1e-12)
        << name;
  EXPECT_THAT(run("evaluate", {"--structures", folder() / "chains"}).out, HasSubstr("2 chains: mean RMSD "));
}

TEST_F(Fold, TakesThePassesOfARun) {
  if (!protein::reads_structures()) GTEST_SKIP() << "built without gemmi";
  const std::string trained = folder() / "trained";
  const Outcome outcome =
      run("train",
          {test::source_dir() + "/examples/folds.toml", "--run.folder=" + trained, "--run.device=cpu",
           "--model.name=small-folding", "--folding.crop=8", "--folding.passes=2", "--training.steps=1",
           "--training.evaluate_every=0", "--training.sample_tokens=0"},
          {});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::filesystem::create_directories(folder() / "of_run");
  const auto line_of = [](const Outcome& done) { return json::parse(done.out.substr(0, done.out.find('\n'))); };
  const json folded =
      line_of(fold({"--sequence", "MKTAYIAK", "--to", folder() / "of_run/one.cif", "--json"}, {"trained"}));
  const json thrice =
      line_of(fold({"--sequence", "MKTAYIAK", "--to", folder() / "x.cif", "--json", "--passes", "3"}, {"trained"}));
  EXPECT_EQ(folded.at("passes"), 2);
  ASSERT_NE(folded.at("plddt"), thrice.at("plddt"));
  const json evaluated = line_of(run("evaluate", {"--structures", folder() / "of_run", "--json"}, {"trained"}));
  EXPECT_NEAR(evaluated.at("plddt").get<double>(), folded.at("plddt").get<double>(), 1e-4);
  EXPECT_EQ(fold::keys_of_source(trained, program()).rows.clusters, 1);
  EXPECT_EQ(fold::keys_of_source(folder() / "a", program()).rows.clusters, 512);
}

TEST_F(Fold, FoldsWithFoldingModelsAlone) {
  EXPECT_THAT(run("generate", {"--prompt", "x"}).err,
              AllOf(HasSubstr("which folds proteins"), HasSubstr("`colossal fold` folds with it")));
  folder().write(
      "text/config.json",
      R"({"model_type": "gpt2", "vocab_size": 257, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16})");
  EXPECT_THAT(refused({"--sequence", "MK", "--to", folder() / "x.cif"}, {"text"}),
              HasSubstr("the model must fold proteins: got a gpt2, which continues text"));
}

}  // namespace
}  // namespace colossal::cli::fold_test
