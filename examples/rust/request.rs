//! Scores of requests by a published Deep FFM and its plan, from Rust: raw columns in, probabilities out.
//!
//!     ctrbox publish request-plan model/ -o request.ctr
//!     make -C examples/rust                                      # with libctrbox installed; docs/publishing/c_abi.md
//!     ./request request.ctr model/weights/versions/00000001.fbw < requests.jsonl
//!
//! Each line is a request, as POST /v1/score takes it; for each a line with the scores of its candidates is printed. The
//! lines are scored by several threads that share one scorer, and printed in their order.

use std::ffi::{c_char, c_void, CStr, CString};
use std::io::{self, BufRead, Write};

#[repr(C)]
struct RawScorer {
    _private: [u8; 0],
}

const CTRBOX_OK: i32 = 0;
const MOST: usize = 4096; // candidates of a request
const THREADS: usize = 4;

#[link(name = "ctrbox")]
extern "C" {
    fn ctrbox_last_error() -> *const c_char;
    fn ctrbox_scorer_open(plan: *const c_char, weights: *const c_char, scorer: *mut *mut RawScorer) -> i32;
    fn ctrbox_scorer_close(scorer: *mut RawScorer);
    fn ctrbox_scorer_json(
        scorer: *const RawScorer,
        body: *const c_void,
        bytes: usize,
        scores: *mut f32,
        capacity: usize,
        rows: *mut usize,
    ) -> i32;
}

/// The sentence of this thread's last failed call.
fn last_error() -> String {
    // SAFETY: the library returns a text with a zero byte, valid until this thread's next call.
    unsafe { CStr::from_ptr(ctrbox_last_error()) }.to_string_lossy().into_owned()
}

/// An open plan with its model. It never changes, so threads may share it; it is closed when it is dropped.
struct Scorer(*mut RawScorer);

// SAFETY: the header allows any number of threads to use one scorer at the same time.
unsafe impl Send for Scorer {}
unsafe impl Sync for Scorer {}

impl Scorer {
    fn open(plan: &str, weights: &str) -> Result<Scorer, String> {
        let plan = CString::new(plan).map_err(|error| error.to_string())?;
        let weights = CString::new(weights).map_err(|error| error.to_string())?;
        let mut scorer = std::ptr::null_mut();
        // SAFETY: both texts end with a zero byte, and the library stores one pointer.
        match unsafe { ctrbox_scorer_open(plan.as_ptr(), weights.as_ptr(), &mut scorer) } {
            CTRBOX_OK => Ok(Scorer(scorer)),
            _ => Err(last_error()),
        }
    }

    fn scores(&self, body: &[u8]) -> Result<Vec<f32>, String> {
        let (mut scores, mut rows) = (vec![0.0_f32; MOST], 0_usize);
        // SAFETY: the body and the scores are as long as the call is told, and stay where they are during it.
        let status = unsafe {
            ctrbox_scorer_json(self.0, body.as_ptr().cast(), body.len(), scores.as_mut_ptr(), MOST, &mut rows)
        };
        if status != CTRBOX_OK {
            return Err(last_error());
        }
        scores.truncate(rows);
        Ok(scores)
    }
}

impl Drop for Scorer {
    fn drop(&mut self) {
        // SAFETY: nobody else can have the scorer any more.
        unsafe { ctrbox_scorer_close(self.0) }
    }
}

fn run(plan: &str, weights: &str) -> Result<(), String> {
    let scorer = Scorer::open(plan, weights)?;
    let lines: Vec<String> = io::stdin().lock().lines().collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let part = lines.len().div_ceil(THREADS).max(1);
    let answers: Vec<Result<Vec<f32>, String>> = std::thread::scope(|threads| {
        let score = |part: &'_ [String]| part.iter().map(|line| scorer.scores(line.as_bytes())).collect::<Vec<_>>();
        let started: Vec<_> = lines.chunks(part).map(|part| threads.spawn(move || score(part))).collect();
        started.into_iter().flat_map(|thread| thread.join().expect("a thread ended early")).collect()
    });
    let mut out = io::stdout().lock();
    for answer in answers {
        let texts: Vec<String> = answer?.iter().map(|score| format!("{score}").replace("NaN", "nan")).collect();
        writeln!(out, "{}", texts.join(" ")).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    if given.len() != 3 {
        eprintln!("usage: {} REQUEST_PLAN WEIGHTS < requests.jsonl", given[0]);
        std::process::exit(2);
    }
    if let Err(error) = run(&given[1], &given[2]) {
        eprintln!("request: {error}");
        std::process::exit(1);
    }
}
