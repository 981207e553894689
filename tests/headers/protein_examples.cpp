// The examples at the beginning of headers of protein. tests/base/examples_test.cpp compares them with the headers.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/protein/alignment.h"
#include "colossal/protein/comparison.h"
#include "colossal/protein/fasta.h"
#include "colossal/protein/geometry.h"
#include "colossal/protein/residues.h"
#include "colossal/protein/sequence_alignment.h"
#include "colossal/protein/stereochemistry.h"
#include "colossal/protein/structure.h"
#include "colossal/protein/structure_reader.h"
#include "colossal/protein/superposition.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, Geometry) {
  const protein::Frame frame = protein::backbone_frame({1, 2, 0}, {0, 1, .5}, {-1, .5, 2});
  const protein::Point tip = frame.apply({-0.529, -0.774, -1.205});
  EXPECT_NEAR(protein::distance(tip, {0, 1, .5}), 1.527, .001);
}

TEST(HeaderExamples, Residues) {
  const int type = protein::type_of_letter('K');
  const std::string name = protein::name_of_type(type);
  const int atom = protein::atom37_of_name("NZ");
  const bool has = protein::residue_tables().atom37_exists[type][atom];
  EXPECT_EQ(type, 11);
  EXPECT_EQ(name, "LYS");
  EXPECT_EQ(atom, 35);
  EXPECT_TRUE(has);
}

TEST(HeaderExamples, Stereochemistry) {
  const auto bounds = protein::atom14_bounds({.tolerance = 12, .overlap = 1.5});
  const double shortest = bounds.lower[protein::type_of_letter('A')][0][1];
  EXPECT_NEAR(shortest, 1.219, 1e-12);
}

TEST(HeaderExamples, Fasta) {
  const auto fold = [](const std::string&, const std::vector<std::string>&) {};
  const auto run = [&] {
    for (const protein::FastaRecord& record : protein::read_fasta("many.fasta.gz")) fold(record.name, record.chains);
  };
  EXPECT_THROW(run(), Error) << "there is no such file";
}

TEST(HeaderExamples, Alignment) {
  const std::string sequence = "MKTAY";
  const auto run = [&] {
    const protein::Alignment found = protein::read_alignment("x.a3m");
    protein::require_query(found, sequence, "x.fasta:1");
    const protein::Alignment all = protein::join_alignments({found, protein::read_alignment("x.sto.gz")});
    const int type = protein::alignment_type_of_letter(all.rows[2][5]);
    return type;
  };
  EXPECT_THROW(run(), Error) << "there is no such file";
}

TEST(HeaderExamples, Structure) {
  const std::vector<int64_t> types{protein::kUnknownType};
  const std::vector<protein::Point> positions(protein::kAtom37);
  const std::vector<double> confidence(protein::kAtom37);
  const bool mask[protein::kAtom37] = {};
  const std::span<const bool> exists(mask);
  const auto run = [&] {
    protein::Structure structure{.name = "one"};
    structure.chains.push_back(protein::chain_of_atom37(protein::chain_id(0), types, positions, exists, confidence));
    protein::write_structure(structure, "out.cif");
  };
  EXPECT_THROW(run(), Error) << "the structure has no atom";
}

TEST(HeaderExamples, StructureReader) {
  const auto use = [](const std::string&, const std::string&) {};
  const auto run = [&] {
    const protein::Structure structure = protein::read_structure("1abc.cif.gz");
    for (const protein::StructureChain& chain : structure.chains) use(chain.id, protein::sequence_of(chain));
  };
  EXPECT_THROW(run(), Error) << "there is no such file";
}

TEST(HeaderExamples, Superposition) {
  const std::vector<protein::Point> predicted{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}}, reference = predicted;
  const protein::Superposition best = protein::superpose(predicted, reference);
  const protein::Point moved = best.transform.apply(predicted[0]);
  EXPECT_LT(protein::norm(moved), 1e-12);
}

TEST(HeaderExamples, SequenceAlignment) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  const auto use = [&](int64_t a, int64_t b) { pairs.emplace_back(a, b); };
  for (const auto& [a, b] : protein::align_sequences("MKTAY", "MKAY")) use(a, b);
  EXPECT_EQ(pairs, (std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {3, 2}, {4, 3}}));
}

TEST(HeaderExamples, Comparison) {
  protein::Structure predicted{"x", {{"A", std::vector<protein::StructureResidue>(4)}}};
  for (size_t i = 0; i < 4; ++i)
    predicted.chains[0].residues[i].atoms = {{protein::kAtomCa, {static_cast<double>(i * i), 0, 1. * i}, 90}};
  const protein::Structure reference = predicted;
  const protein::Comparison found = protein::compare(protein::ca_trace(predicted), protein::ca_trace(reference));
  std::printf("RMSD %.2f A, TM %.3f\n", found.rmsd, found.tm);
  EXPECT_NEAR(found.tm, 1, 1e-12);
}

}  // namespace
}  // namespace colossal::header_examples
