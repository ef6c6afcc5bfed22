//! What words take as a list of addresses, for users that bring their own lists. Under the lock, in task context.

use super::super::table::Functions;
use super::means_everything;
use crate::addr::FuncAddr;
use crate::ascending::Ascending;
use crate::engine::Engine;
use crate::filter_text::{FilterLine, words};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::select::{Selection, select};
use crate::words::{Cause, Desk, WordError};

impl<P: Platform, M: Machine> Engine<P, M> {
    /// The functions that words take now, as `functions_of_words` has it.
    ///
    /// # Errors
    /// See there.
    pub fn functions_of_words<'r>(
        &self,
        text: &str,
        room: &'r mut [FuncAddr],
    ) -> Result<&'r [FuncAddr], WordError> {
        let _control = self.control.lock();
        let desk = self.desk.lock();
        let Desk { book, .. } = &*desk;
        let table = Functions::<M>::new(&self.sites, book, None);
        let mut list = Ascending::new(room);
        let mut words = words(text);
        while let Some((at, word)) = words.next_at() {
            let error = |column, cause| WordError { column, start: at.start, end: at.end, cause };
            let line = word.map_err(|cause| error(cause.column(), Cause::Parse(cause)))?;
            take(&line, &table, &mut list).map_err(|(column, cause)| error(column, cause))?;
            if list.refused() > 0 {
                let cause = Cause::NoRoom { room: list.room(), more: list.refused() };
                return Err(error(line.column, cause));
            }
        }
        Ok(list.into_slice())
    }
}

fn take<M: Machine>(
    line: &FilterLine<'_>,
    table: &Functions<'_, M>,
    list: &mut Ascending<'_>,
) -> Result<(), (usize, Cause)> {
    if let Some(command) = line.command {
        return Err((command.column, Cause::Command));
    }
    if means_everything(line) {
        list.clear();
        if !line.remove {
            table.lines(None).for_each(|line| list.add(line.func));
        }
        return Ok(());
    }
    let mut put = |number| {
        let Some(found) = table.line(number) else { return };
        if line.remove { list.remove(found.func) } else { list.add(found.func) }
    };
    match select(line, table, &mut put) {
        Ok(Selection::Functions(_)) => Ok(()),
        Ok(Selection::Pending) => Err((line.column, Cause::NotThere)),
        Err(error) => Err((error.column(), Cause::Select(error))),
    }
}
